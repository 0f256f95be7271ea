"""Every stage on numbers worked by hand: what it stores, what comes back, how many bytes it takes."""

import numpy as np
import pytest
import torch

from catchment.codecs import Chain, Form
from catchment.codecs.chain import Coded
from catchment.codecs.lossless import zstd
from catchment.codecs.rules import STAGES, parse_chain
from catchment.errors import ProtocolError, WireError


def chain_of(text):
    return parse_chain(text, "test", STAGES)


def sent(values, text):
    """A tensor on its way out; as it is if no stage helps."""
    coded = chain_of(text).encode("x", values, {})
    return coded or Coded(Chain(), {"values": values.reshape(-1)}, (), {})


def received(coded, dtype, shape):
    return decoded(coded.chain, coded.parts, dtype, shape, coded.counts)


def decoded(chain, parts, dtype, shape, counts=()):
    return chain.decode(parts, chain.contexts(Form(dtype, tuple(shape)), counts), {})


def through(values, text):
    """Parts of a tensor, and what the receiver makes of them."""
    coded = sent(values, text)
    restored = received(coded, values.dtype, values.shape)
    assert (restored.dtype, restored.shape) == (values.dtype, values.shape)
    return coded, restored


def lists(coded):
    return {name: part.tolist() for name, part in coded.parts.items()}


def relu_noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).relu_()


# ---- casts ------------------------------------------------------------------------------------------------------


def test_fp16_rounds_and_stays_finite():
    x = torch.tensor([1 / 3, 1e6, -1e6, float("inf"), -float("inf"), 1e-9])
    packed, restored = through(x, "fp16")
    assert packed.parts["values"].dtype == torch.float16
    assert restored.tolist() == [0.333251953125, 65504, -65504, float("inf"), -float("inf"), 0]


def test_bf16_keeps_eight_bits_of_the_fraction_and_stays_finite():
    packed, restored = through(torch.tensor([1 + 1 / 128, 1 + 1 / 512, 3.4e38]), "bf16")
    assert packed.parts["values"].dtype == torch.bfloat16
    assert restored.tolist() == [1 + 1 / 128, 1, torch.finfo(torch.bfloat16).max]


def test_a_cast_passes_nan_on():
    assert through(torch.tensor([1.0]), "fp16")[1].tolist() == [1]
    values = sent(torch.tensor([float("nan"), 1e6]), "fp16").parts["values"]
    assert values.isnan().tolist() == [True, False]
    assert values[1] == 65504


# ---- int8 and int4 ----------------------------------------------------------------------------------------------


def test_int8_stores_levels_from_zero_modulo_256():
    packed, restored = through(torch.tensor([-55.0, 0.0, 200.0, 0.4, 0.6, -0.6]), "int8")  # steps of (200 + 55) / 255
    assert lists(packed) == {"ranges": [-55, 200], "values": [201, 0, 200, 0, 1, 255]}
    assert restored.tolist() == [-55, 0, 200, 0, 1, -1]


def test_int8_has_a_range_for_each_index_of_the_axis():
    x = torch.tensor([[[0.0, 255.0]], [[510.0, 0.0]]])  # [2, 1, 2]
    assert lists(through(x, "int8(0)")[0]) == {"ranges": [0, 0, 255, 510], "values": [0, 255, 255, 0]}
    assert lists(through(x, "int8")[0]) == {"ranges": [0, 510], "values": [0, 128, 255, 0]}
    assert lists(through(x, "int8(2)")[0]) == {"ranges": [0, 0, 510, 255], "values": [0, 255, 255, 0]}
    assert lists(through(x, "int8(3)")[0]) == lists(through(x, "int8")[0])  # no such axis: one range


def test_a_row_of_numbers_has_one_range():
    assert lists(through(torch.tensor([255.0, 0.0]), "int8(0)")[0]) == {"ranges": [0, 255], "values": [255, 0]}
    assert lists(through(torch.tensor(-255.0), "int8")[0]) == {"ranges": [-255, 0], "values": [1]}


def test_int4_packs_two_levels_to_a_byte_the_first_below():
    packed, restored = through(torch.tensor([-5.0, 0.0, 10.0]), "int4")  # steps of 1; -5 is level 11 modulo 16
    assert lists(packed) == {"ranges": [-5, 10], "values": [11, 10]}
    assert restored.tolist() == [-5, 0, 10]
    assert lists(through(torch.tensor([1.0, 2.0, 3.0, 15.0]), "int4")[0])["values"] == [1 + 16 * 2, 3 + 16 * 15]


def test_int4_cuts_off_an_outlier_when_that_is_the_smaller_error():
    x = torch.tensor([30.0] + [1.0, 3.0, 5.0] * 1000)
    # whole range: steps of 2, an error of 1 for each of 3000; half of it: steps of 1, and 15 squared for the outlier
    packed, restored = through(x, "int4")
    assert packed.parts["ranges"].tolist() == [0, 15]
    assert restored.tolist() == [15.0] + [1.0, 3.0, 5.0] * 1000


def test_int4_looks_at_evenly_spaced_numbers_of_a_large_channel():
    x = torch.zeros(2, 8192)
    x[0, 4096:], x[1, 4096:] = 15.0, 30.0
    x[0, 1] = 30.0  # known to the range, but not among those looked at: every second of 8192
    assert through(x, "int4(0)")[0].parts["ranges"].tolist() == [0, 0, 15, 30]


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_int8_is_off_by_half_a_step_at_most_and_keeps_zeros(axis, scale):
    x = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(3)) * scale
    x[:, :, 2] = 0
    packed, restored = through(x, f"int8({axis})")
    low, high = packed.parts["ranges"].view(2, -1)
    steps = ((high - low) / 255).view([-1 if dim == axis else 1 for dim in range(3)])
    assert ((restored - x).abs() <= steps * 0.5001).all()
    assert (restored[x == 0] == 0).all()
    assert not (restored[x == 0]).signbit().any()


def test_numbers_too_small_for_a_step_become_zero():
    assert through(torch.tensor([1e-44, 0.0]), "int8")[1].tolist() == [0, 0]
    assert through(torch.zeros(4), "int4")[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_come_back_in_their_dtype(dtype):
    _, restored = through(torch.tensor([-55.0, 0.0, 200.0], dtype=dtype), "int8")
    assert restored.tolist() == [-55, 0, 200]


def test_the_largest_half_precision_number_does_not_become_infinite():
    x = torch.tensor([65504.0, -100.0], dtype=torch.float16)  # steps of 257.3 from 0: the last level is 65604
    assert through(x, "int8")[1].tolist() == [65504, 0]


@pytest.mark.parametrize("stage", ["int8", "int4", "topk(0.5)"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_by_name(stage, bad):
    with pytest.raises(ProtocolError, match=rf"^x holds NaN or infinity, which {stage[:4]} cannot carry"):
        through(torch.tensor([[1.0, bad], [2.0, 3.0]]), stage)


def test_a_number_near_the_end_of_float32_is_refused():
    with pytest.raises(ProtocolError, match=r"x holds a number beyond 1e\+38, which int8 cannot carry"):
        through(torch.tensor([2e38]), "int8")
    assert through(torch.tensor([1e38, -1e38]), "int8")[1].isfinite().all()


# ---- topk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "positions", "values"),
    [(0.5, [1, 3, 4], [-3, 3, -3]), (0.34, [1, 3], [-3, 3]), (0.01, [1], [-3]), (0.67, [1, 2, 3, 4], [-3, 2, 3, -3])],
)
def test_topk_keeps_the_largest_and_of_equal_ones_the_first(share, positions, values):
    x = torch.tensor([[1.0, -3.0, 2.0], [3.0, -3.0, 0.5]])
    packed, restored = through(x, f"topk({share})")
    assert lists(packed) == {"positions": positions, "values": values}
    expected = [0.0] * 6
    for position, value in zip(positions, values):
        expected[position] = value
    assert restored.reshape(-1).tolist() == expected
    assert packed.parts["positions"].dtype == torch.int32


def test_later_stages_work_on_the_values_that_topk_kept():
    packed, restored = through(torch.tensor([[0.1, -5.0], [10.0, 0.2]]), "topk(0.5)+int4")
    assert lists(packed) == {"positions": [1, 2], "ranges": [-5, 10], "values": [11 + 16 * 10]}
    assert restored.tolist() == [[0, -5], [10, 0]]


# ---- sparse -----------------------------------------------------------------------------------------------------


def test_sparse_is_a_bitmap_and_the_values():
    x = torch.tensor([0, 5, 0, 0, 7, 0, 0, 0, 0, 1], dtype=torch.int32)
    packed, restored = through(x, "sparse")
    assert lists(packed) == {"bitmap": [2 + 16, 2], "values": [5, 7, 1]}
    assert packed.counts == (3,)
    assert torch.equal(restored, x)


def test_sparse_keeps_the_sign_of_zero():
    x = torch.tensor([0.0, -0.0, 0.0, 0.0])
    packed, restored = through(x, "sparse")
    assert packed.counts == (1,)
    assert restored.signbit().tolist() == [False, True, False, False]


def test_sparse_after_int4_packs_the_levels_that_are_left():
    packed, restored = through(torch.tensor([0.0, 15.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 7.0] + [0.0] * 23), "int4+sparse")
    assert lists(packed) == {"ranges": [0, 15], "bitmap": [2 + 16, 1, 0, 0], "values": [15 + 16 * 3, 7]}
    assert restored.tolist()[:9] == [0, 15, 0, 0, 3, 0, 0, 0, 7]


def test_sparse_is_left_out_where_it_would_not_help():
    packed, _ = through(torch.tensor([1, 2, 3, 0], dtype=torch.uint8), "sparse")  # 1 + 3 bytes against 4
    assert lists(packed) == {"values": [1, 2, 3, 0]}
    assert str(packed.chain) == ""
    assert packed.counts == ()


# ---- zstd -------------------------------------------------------------------------------------------------------


def test_zstd_holds_the_bytes_of_all_parts_in_planes():
    x = torch.tensor([1.0, 2.0, 3.0, 1e-3] * 64)
    packed, _ = through(x, "topk(0.75)+fp16+zstd")
    assert list(packed.parts) == ["zstd"]
    raw = zstd.decompress(packed.parts["zstd"].numpy().data)
    positions = np.array([i for i in range(256) if i % 4 != 3], dtype="<i4")
    values = np.array([1, 2, 3] * 64, dtype="<f2")
    planes = [(positions >> shift & 255).astype(np.uint8) for shift in (0, 8, 16, 24)]
    planes += [(values.view("<u2") >> shift & 255).astype(np.uint8) for shift in (0, 8)]
    assert bytes(raw) == np.concatenate(planes).tobytes()


def test_zstd_is_left_out_where_it_would_not_help():
    noise = torch.randint(0, 256, (500,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    packed, _ = through(noise, "zstd")
    assert str(packed.chain) == ""
    assert torch.equal(packed.parts["values"], noise)


def test_a_higher_level_is_passed_on():
    x = (torch.arange(60_000) * 7919 % 1013).to(torch.int32)
    assert len(through(x, "zstd(19)")[0].parts["zstd"]) < len(through(x, "zstd(1)")[0].parts["zstd"])


# ---- sizes ------------------------------------------------------------------------------------------------------

ELEMENTS = 8 * 4 * 16 * 16


@pytest.mark.parametrize(
    ("chain", "size"),
    [
        ("fp16", ELEMENTS * 2),
        ("int8", ELEMENTS + 2 * 4 * 4),
        ("int8(0)", ELEMENTS + 2 * 4 * 8),
        ("int4", ELEMENTS // 2 + 2 * 4 * 4),
        ("topk(0.01)", 82 * (4 + 4)),
        ("topk(0.01)+fp16", 82 * (4 + 2)),
        ("topk(0.01)+int8", 82 * (4 + 1) + 2 * 4),
        ("topk(0.01)+int4", 82 * 4 + 41 + 2 * 4),
    ],
)
def test_parts_have_the_bytes_that_arithmetic_says(chain, size):
    packed, _ = through(relu_noise(8, 4, 16, 16), chain)
    assert sum(part.numel() * part.element_size() for part in packed.parts.values()) == size


def test_sparse_parts_have_the_bytes_that_arithmetic_says():
    x = relu_noise(8, 4, 16, 16)
    kept = int((x > 0).sum())
    packed, _ = through(x, "sparse")
    assert packed.counts == (kept,)
    assert [len(part) for part in packed.parts.values()] == [ELEMENTS // 8, kept]


# ---- sign -------------------------------------------------------------------------------------------------------


def test_sign_is_a_bit_a_number_and_the_mean_magnitude():
    x = torch.tensor([3.0, -1.0, 0.0, -4.0, 2.0])  # mean magnitude 2; bits 1, 0, 1, 0, 1
    packed, restored = through(x, "sign")
    assert lists(packed) == {"ranges": [2], "values": [1 + 4 + 16]}
    assert restored.tolist() == [2, -2, 2, -2, 2]


def test_sign_of_a_cube_and_of_half_precision():
    x = relu_noise(3, 5, 7) - 0.1
    packed, restored = through(x, "sign")
    assert len(packed.parts["values"]) == 14  # 105 bits
    assert torch.equal(restored.sign(), x.sign())
    assert through(x.half(), "sign+zstd")[1].dtype == torch.float16


def test_sign_cannot_carry_what_is_not_finite():
    with pytest.raises(ProtocolError, match="x holds NaN or infinity, which sign cannot carry"):
        sent(torch.tensor([1.0, float("inf")]), "sign")
    with pytest.raises(ProtocolError, match=r"x holds a number beyond 1e\+38, which sign cannot carry"):
        sent(torch.tensor([3e38, 3e38]), "sign")


# ---- golomb and smartidx ----------------------------------------------------------------------------------------


def test_golomb_says_where_the_values_of_topk_belong():
    x = torch.zeros(10)
    x[[1, 2, 9]] = torch.tensor([5.0, -6.0, 7.0])
    packed, restored = through(x, "topk(0.3)+golomb")
    assert lists(packed) == {"gaps": [1, 35, 1], "values": [5, -6, 7]}  # as in test_positions
    assert torch.equal(restored, x)


@pytest.mark.parametrize("rare", [True, False])
def test_golomb_of_truth_values_says_where_the_rarer_ones_are(rare):
    x = torch.full((10,), not rare)
    x[[1, 2, 9]] = rare
    packed, restored = through(x, "golomb")
    assert lists(packed) == {"gaps": [int(rare), 1, 35, 1]}
    assert packed.counts == (3,)
    assert torch.equal(restored, x)


def test_a_mask_that_would_be_too_few_bytes_to_be_believed_goes_as_it_is():
    packed, restored = through(torch.zeros(100_000, dtype=torch.bool), "golomb")
    assert str(packed.chain) == ""
    assert list(packed.parts) == ["values"]
    assert not restored.any()


def test_golomb_is_for_positions_and_truth_values_only():
    assert str(chain_of("fp16+golomb").applicable(torch.float32)) == "fp16"
    assert str(chain_of("golomb").applicable(torch.int64)) == ""
    assert str(chain_of("topk(0.1)+golomb").applicable(torch.bool)) == "golomb"


def test_smartidx_completes_kernels_and_comes_back():
    x = torch.zeros(2, 2, 3, 3)
    x[0, 1] = torch.arange(9.0).view(3, 3) + 100  # nine large numbers, of which six are the share
    packed, restored = through(x, "smartidx(0.1666)")
    assert packed.parts["values"].tolist() == list(range(100, 109))
    assert torch.equal(restored, x)
    assert through(relu_noise(6, 5, 3, 3), "smartidx(0.2)+int4")[0].parts["values"].dtype == torch.uint8


# ---- damage -----------------------------------------------------------------------------------------------------


DAMAGED = {
    "values of another dtype": ("fp16", [8], {"values": torch.zeros(8)}, "part values is torch.float32 of shape"),
    "too few values": ("int8", [8], {"values": torch.zeros(7, dtype=torch.uint8)}, r"\[8\] was expected"),
    "too many ranges": ("int8", [8], {"ranges": torch.zeros(4)}, r"part ranges is torch.float32 of shape \[4\]"),
    "a range above zero": ("int8", [8], {"ranges": torch.tensor([1.0, 2.0])}, "a range does not reach"),
    "a range below zero": ("int8", [8], {"ranges": torch.tensor([-2.0, -1.0])}, "a range does not reach"),
    "a range with NaN": ("int8", [8], {"ranges": torch.tensor([0.0, float("nan")])}, "a range does not reach"),
    "an endless range": ("int8", [8], {"ranges": torch.tensor([0.0, float("inf")])}, "a range does not reach"),
    "a padded nibble": ("int4", [7], {"values": torch.full((4,), 255, dtype=torch.uint8)}, "last byte is not zero"),
    "a position twice": ("topk(0.25)", [8], {"positions": torch.tensor([3, 3]).int()}, "positions do not rise"),
    "a position below 0": ("topk(0.25)", [8], {"positions": torch.tensor([-1, 3]).int()}, "within 0 to 7"),
    "a position beyond": ("topk(0.25)", [8], {"positions": torch.tensor([3, 8]).int()}, "within 0 to 7"),
    "a padded bitmap": ("sparse", [12], {"bitmap": torch.tensor([1, 128]).byte()}, "padding of its bitmap"),
    "a bit too many": ("sparse", [12], {"bitmap": torch.tensor([3, 0]).byte()}, "2 bits set for 1 values"),
    "golomb of words": ("topk(0.25)+golomb", [8], {"gaps": torch.zeros(3)}, "uint8 of shape .any. was expected"),
    "golomb without an end": ("topk(0.25)+golomb", [8], {"gaps": torch.zeros(2).byte()}, "0 ends in 1 bytes for 2"),
    "a scale below 0": ("sign", [8], {"ranges": torch.tensor([-1.0])}, "scale is not between 0 and"),
    "a scale that is none": ("sign", [8], {"ranges": torch.tensor([float("nan")])}, "scale is not between 0 and"),
    "bits beyond the end": ("sign", [9], {"values": torch.tensor([0, 2]).byte()}, "padding of its last byte"),
    "too few for smartidx": ("smartidx(0.5)", [8], {"values": torch.zeros(1)}, "1 values where 4 were expected"),
    "fewer positions": ("smartidx(0.5)", [8], {"index": torch.zeros(3).byte()}, "0 positions; at least 4"),
    "more values than positions": ("smartidx(0.5)", [8], {"values": torch.zeros(5)}, "5 values where 4 were expected"),
    "zstd of words": ("int8+zstd", [999], {"zstd": torch.zeros(9)}, "part zstd is torch.float32"),
    "zstd of nothing": ("int8+zstd", [999], {"zstd": torch.zeros(0).byte()}, "0 bytes of zstd do not hold the 1,007"),
    "zstd of junk": ("int8+zstd", [999], {"zstd": torch.zeros(9).byte()}, "zstd cannot read it"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_parts_are_refused_with_the_reason(case):
    text, shape, wrong, reason = DAMAGED[case]
    x = torch.zeros(shape)
    x[0] = 1
    coded = sent(x, text)
    assert coded.chain == chain_of(text)
    with pytest.raises(WireError, match=reason):
        received(coded._replace(parts=coded.parts | wrong), x.dtype, x.shape)


def test_truth_values_are_zero_or_one():
    parts = {"bitmap": torch.tensor([1, 0]).byte(), "values": torch.tensor([2]).byte().view(torch.bool)}
    with pytest.raises(WireError, match="truth values other than 0 and 1"):
        decoded(chain_of("sparse"), parts, torch.bool, [16], (1,))


def test_few_bytes_of_zstd_cannot_ask_for_much_memory():
    with pytest.raises(WireError, match=r"10 bytes of zstd do not hold the 4,294,967,296 bytes that its shape needs"):
        decoded(chain_of("zstd"), {"zstd": torch.zeros(10).byte()}, torch.float32, [2**30])


def test_zstd_that_holds_another_size_is_refused():
    squeezed = zstd.compress(bytes(1000))
    part = torch.tensor(list(squeezed), dtype=torch.uint8)
    for count in (999, 1001):
        with pytest.raises(WireError, match=f"are not one string of {count:,} bytes"):
            decoded(chain_of("zstd"), {"zstd": part}, torch.uint8, [count])
    assert not decoded(chain_of("zstd"), {"zstd": part}, torch.uint8, [1000]).any()


def test_zstd_that_goes_on_after_its_end_or_stops_before_it_is_refused():
    squeezed = zstd.compress(bytes(1000))
    for wrong in (squeezed + b"more", squeezed + squeezed, squeezed[:-1]):
        part = torch.tensor(list(wrong), dtype=torch.uint8)
        with pytest.raises(WireError, match="are not one string of 1,000 bytes"):
            decoded(chain_of("zstd"), {"zstd": part}, torch.uint8, [1000])


def test_zstd_with_a_window_larger_than_its_bytes_is_refused():
    stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    wide = stream.compress(bytes(500)) + stream.compress(bytes(500)) + stream.flush()
    part = torch.tensor(list(wide), dtype=torch.uint8)
    with pytest.raises(WireError, match="zstd cannot read it"):
        decoded(chain_of("zstd"), {"zstd": part}, torch.uint8, [1000])
    assert zstd.decompress(wide) == bytes(1000)  # though it is sound
