"""Whole messages through the rules: what travels, what comes back, and what the sender remembers."""

import json

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from catchment.codecs import CODECS, Codecs
from catchment.errors import ProtocolError, WireError
from catchment.exchange.message import Message

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
]  # fmt: skip


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def through(codecs: Codecs, message: Message, direction="up", *, base=None) -> tuple[Message, Message]:
    """What travels and what comes out of it, without memory: by hand and by bytes alike."""
    travelling, _ = codecs.encode(message, direction, {}, base=base)
    decoded = codecs.decode(travelling, direction, base=base)
    from_bytes = codecs.decode(Message.from_bytes(travelling.to_bytes())[0], direction, base)
    assert_same(decoded, from_bytes)
    return travelling, decoded


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_same(one: Message, other: Message) -> None:
    assert list(one.tensors) == list(other.tensors)
    for name, tensor in one.tensors.items():
        again = other.tensors[name]
        assert (again.dtype, again.shape, bits(again)) == (tensor.dtype, tensor.shape, bits(tensor)), name
    assert one.scalars == other.scalars


# ---- what travels -----------------------------------------------------------------------------------------------


def test_parts_stand_in_the_place_of_their_tensor_and_the_header_says_how_to_read_them():
    message = Message({"a": torch.ones(9), "features": noise(20, 4, 8), "b": torch.ones(3)}, {"loss": 0.5})
    travelling, decoded = through(Codecs.parse(["features=int8"]), message)
    assert list(travelling.tensors) == ["a", "features:ranges", "features:values", "b"]
    header = {"chains": ["float32=int8"], "tensors": [0, [0, [20, 4, 8]], 0]}
    assert travelling.scalars == {"loss": 0.5, CODECS: json.dumps(header, separators=(",", ":"))}
    assert list(decoded.tensors) == ["a", "features", "b"]
    assert decoded.scalars == {"loss": 0.5}
    assert travelling.tensors["a"] is message.tensors["a"]


def test_the_header_has_the_values_that_sparse_kept():
    x = torch.zeros(40, 10)
    x[0, :3] = 1
    travelling, decoded = through(Codecs.parse(["x=sparse"]), Message({"x": x}))
    assert json.loads(travelling.scalars[CODECS]) == {"chains": ["float32=sparse"], "tensors": [[0, [40, 10], 3]]}
    assert torch.equal(decoded.tensors["x"], x)


@pytest.mark.parametrize("codecs", [Codecs(), Codecs.parse(["down:x=fp16"]), Codecs.parse(["y=fp16"])])
def test_a_message_to_which_no_rule_applies_is_returned_as_it_is(codecs):
    message = Message({"x": noise(1000)})
    travelling, memory = codecs.encode(message, "up", {})
    assert travelling is message
    assert memory == {}
    assert codecs.decode(message, "up") is message


def test_what_would_not_become_smaller_is_left_as_it_is():
    message = Message({"small": noise(16), "large": noise(50, 50), "none": torch.zeros(0, 3), "one": torch.tensor(1.0)})
    travelling, decoded = through(Codecs.parse(["*=int8"]), message)
    assert list(travelling.tensors) == ["small", "large:ranges", "large:values", "none", "one"]
    assert torch.equal(decoded.tensors["small"], message.tensors["small"])
    only_small = Message({"small": noise(50)})  # int8 would save 150 bytes, a second part and the header cost more
    assert Codecs.parse(["*=int8"]).encode(only_small, "up", {})[0] is only_small


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 80), max_size=3), st.sampled_from(["fp16", "int8", "int4", "topk(0.3)", "sparse", "zstd"])
)
def test_no_message_becomes_larger(sizes, chain):
    message = Message({f"x{index}": noise(size, seed=index) for index, size in enumerate(sizes)})
    travelling, _ = Codecs.parse([f"*={chain}"]).encode(message, "up", {})
    assert travelling.size() <= message.size()
    assert travelling is message or travelling.size() < message.size()


def test_int8_features_take_a_quarter_of_their_bytes():
    message = Message({"features": noise(50, 16, 16, 16).relu()})
    travelling, _ = through(Codecs.parse(["features=int8"]), message)
    assert travelling.layout.nbytes == 50 * 16 * 16 * 16 + 2 * 4 * 16
    assert travelling.size() <= 0.26 * message.size()


def test_the_header_of_many_tensors_is_short():
    message = Message({f"weights/stage.{index}.convolution.weight": noise(32, 16, 3, 3) for index in range(60)})
    travelling, _ = Codecs.parse(["weights/*=int8(0)"]).encode(message, "up", {})
    assert len(travelling.scalar_text) < 60 * 20 + 80  # of each [0,[32,16,3,3]] and a comma


def test_integers_go_only_through_stages_that_lose_nothing():
    message = Message({"labels": torch.arange(5000) % 7, "mask": torch.zeros(5000, dtype=torch.bool)})
    travelling, decoded = through(Codecs.parse(["up:*=feedback+topk(0.1)+int8+sparse+zstd"]), message)
    assert json.loads(travelling.scalars[CODECS])["chains"] == ["int64=sparse+zstd", "bool=sparse+zstd"]
    assert_same(decoded, message)
    assert Codecs.parse(["*=fp16"]).encode(message, "up", {})[0] is message


def test_a_half_precision_tensor_is_not_cast():
    message = Message({"x": noise(5000).half()})
    assert Codecs.parse(["x=fp16"]).encode(message, "up", {})[0] is message
    assert Codecs.parse(["x=bf16"]).encode(message, "up", {})[0] is message


def test_names_that_would_collide_with_parts_are_left_as_they_are():
    message = Message({"x": noise(5000), "x:values": noise(5000, seed=1)})
    travelling, decoded = through(Codecs.parse(["*=fp16"]), message)
    assert list(travelling.tensors) == ["x", "x:values:values"]
    assert torch.equal(decoded.tensors["x"], message.tensors["x"])
    assert torch.equal(decoded.tensors["x:values"], message.tensors["x:values"].half().float())


def test_the_name_of_the_header_is_taken():
    with pytest.raises(ProtocolError, match=r'a scalar cannot be called "\(codecs\)"'):
        Codecs().encode(Message({}, {CODECS: 1}), "up", {})


@pytest.mark.parametrize("chain", ["int8", "int4+sparse+zstd", "fp16", "topk(0.1)", "sparse+zstd"])
def test_how_a_tensor_lies_in_memory_does_not_matter(chain):
    codecs = Codecs.parse([f"x={chain}"])
    x = noise(6, 8, 9, 10).relu()
    expected = codecs.encode(Message({"x": x}), "up", {})[0].to_bytes()
    odd = noise(12, 8, 9, 10)
    odd[::2] = x
    for same in (x.to(memory_format=torch.channels_last), odd[::2], x.clone().requires_grad_()):
        travelling, decoded = through(codecs, Message({"x": same}))
        assert travelling.to_bytes() == expected
        assert decoded.tensors["x"].is_contiguous()


def test_nothing_given_is_changed():
    x = noise(400)
    message, memory = Message({"x": x.clone()}), {"residual/x": torch.ones(400)}
    Codecs.parse(["up:x=feedback+topk(0.1)+int8"]).encode(message, "up", memory)
    assert torch.equal(message.tensors["x"], x)
    assert memory.keys() == {"residual/x"}
    assert torch.equal(memory["residual/x"], torch.ones(400))


chains = st.sampled_from(["sparse", "zstd", "sparse+zstd", "sparse+zstd(1)"])
specs = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 12), max_size=3), st.sampled_from([0, 20, 200, 255]))


@settings(deadline=None, max_examples=150)
@given(
    tensors=st.dictionaries(st.text(max_size=5).filter(lambda name: name != "__metadata__"), specs, max_size=4),
    chain=chains,
)
def test_lossless_chains_bring_back_every_bit(tensors, chain):
    message = Message({})
    for seed, (name, (dtype, shape, zeros)) in enumerate(tensors.items()):
        count = torch.Size(shape).numel() * dtype.itemsize
        raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        raw[raw < zeros] = 0
        message.tensors[name] = (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(shape)
    _, decoded = through(Codecs.parse([f"*={chain}"]), message)
    assert_same(decoded, message)


# ---- update -----------------------------------------------------------------------------------------------------


def test_an_update_is_a_difference_from_the_request():
    before, after = noise(300), noise(300)
    after[7] += 4.0
    codecs = Codecs.parse(["up:weights/*=update+topk(0.01)"])  # 3 of 300
    request, reply = Message({"weights/w": before}), Message({"weights/w": after})
    travelling, decoded = through(codecs, reply, base=request)
    assert travelling.tensors["weights/w:positions"].numel() == 3
    assert 7 in travelling.tensors["weights/w:positions"]
    assert torch.equal(decoded.tensors["weights/w"], before + (after - before) * (torch.arange(300) == 7))


@pytest.mark.parametrize("base", [None, Message({}), Message({"w": noise(301)}), Message({"w": noise(300).double()})])
def test_without_a_fitting_request_the_tensor_goes_whole(base):
    codecs = Codecs.parse(["up:w=update+feedback+topk(0.01)+fp16"])
    message = Message({"w": noise(300)})
    travelling, memory = codecs.encode(message, "up", {"residual/w": torch.ones(300)}, base=base)
    assert json.loads(travelling.scalars[CODECS])["chains"] == ["float32=fp16"]
    assert torch.equal(memory["residual/w"], torch.ones(300))  # waits for the next difference
    decoded = codecs.decode(travelling, "up")
    assert torch.equal(decoded.tensors["w"], message.tensors["w"].half().float())


def test_an_update_without_its_request_is_refused():
    codecs = Codecs.parse(["up:w=update+fp16"])
    base = Message({"w": noise(300)})
    travelling, _ = codecs.encode(Message({"w": noise(300)}), "up", {}, base=base)
    for wrong in (None, Message({}), Message({"w": noise(10, 30)})):
        with pytest.raises(WireError, match='coded tensor "w": a difference from the request came, but the request'):
            codecs.decode(travelling, "up", base=wrong)


def test_a_difference_that_is_not_finite_goes_whole_or_is_refused():
    base = Message({"w": torch.full((300,), float("inf"))})
    message = Message({"w": noise(300)})
    travelling, decoded = through(Codecs.parse(["up:w=update+topk(0.1)+fp16"]), message, base=base)
    assert json.loads(travelling.scalars[CODECS])["chains"] == ["float32=fp16"]
    assert torch.equal(decoded.tensors["w"], message.tensors["w"].half().float())
    message.tensors["w"][5] = float("nan")
    with pytest.raises(ProtocolError, match=r"^w holds NaN or infinity, which topk cannot carry"):
        Codecs.parse(["up:w=update+topk(0.1)"]).encode(message, "up", {}, base=Message({"w": noise(300)}))
    _, memory = Codecs.parse(["up:w=feedback+fp16"]).encode(message, "up", {})
    assert memory == {}  # a residual with NaN would never go away


# ---- feedback ---------------------------------------------------------------------------------------------------


def test_what_topk_left_out_is_sent_later():
    codecs = Codecs.parse(["up:x=feedback+topk(0.01)"])  # 1 of 100
    x = torch.zeros(100)
    x[3], x[50] = 4.0, 3.0
    memory, received = {}, []
    for _ in range(3):
        travelling, memory = codecs.encode(Message({"x": x}), "up", memory)
        received.append(codecs.decode(travelling, "up").tensors["x"])
        assert memory.keys() == {"residual/x"}
    # 4 against 3; then 4 against 3 + 3; then 4 + 4 against 3
    assert [got[[3, 50]].tolist() for got in received] == [[4, 0], [0, 6], [8, 0]]
    assert memory["residual/x"][[3, 50]].tolist() == [0, 3]


@pytest.mark.parametrize(
    "rest", ["topk(0.1)", "int8", "int4", "fp16", "bf16", "topk(0.2)+int4+zstd", "int4+sparse+zstd"]
)
def test_all_that_was_received_and_the_residual_are_all_that_was_put_in(rest):
    codecs = Codecs.parse([f"up:x=feedback+{rest}"])
    memory, received, given_in = {}, torch.zeros(40, 20), torch.zeros(40, 20)
    for number in range(5):
        x = noise(40, 20, seed=number)
        travelling, memory = codecs.encode(Message({"x": x}), "up", memory)
        received += codecs.decode(travelling, "up").tensors["x"]
        given_in += x
    torch.testing.assert_close(received + memory["residual/x"], given_in, rtol=0, atol=1e-5)
    assert (received - given_in).abs().max() > 1e-4  # something was lost on the way


def test_a_residual_of_another_shape_is_forgotten():
    codecs = Codecs.parse(["up:x=feedback+fp16"])
    _, memory = codecs.encode(Message({"x": torch.ones(400)}), "up", {"residual/x": torch.ones(300)})
    assert torch.equal(memory["residual/x"], torch.zeros(400))


def test_residuals_of_tensors_that_are_not_in_the_message_stay():
    codecs = Codecs.parse(["up:*=feedback+fp16"])
    _, memory = codecs.encode(Message({"x": torch.ones(400)}), "up", {"residual/y": torch.ones(3)})
    assert memory.keys() == {"residual/x", "residual/y"}


# ---- other sides ------------------------------------------------------------------------------------------------


def test_stages_that_the_rules_here_do_not_have_are_refused():
    travelling, _ = Codecs.parse(["x=int8"]).encode(Message({"x": noise(500)}), "up", {})
    for rules, said in ([], "nothing"), (["x=int4"], "int4"), (["x=int8(0)"], r"int8\(0\)"):
        with pytest.raises(WireError, match=f"it went through int8, the rule here says {said}; both sides need"):
            Codecs.parse(rules).decode(travelling, "up")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.uint8])
def test_a_tensor_of_zeros_comes_back(dtype):
    message = Message({"features": torch.zeros(40, 6, 8, dtype=dtype)})
    travelling, decoded = through(Codecs.parse(["*=sparse+zstd"]), message)
    assert travelling.size() < message.size()
    assert torch.equal(decoded.tensors["features"], message.tensors["features"])


# ---- what waits at the sender -----------------------------------------------------------------------------------


def sent_over(rule: str, changes: list[Tensor]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """What the receiver is told of each change, and what the sender keeps after it; the base is always zero."""
    codecs, base = Codecs.parse([rule]), Message({"w": torch.zeros_like(changes[0])})
    memory, told, kept = {}, [], []
    for change in changes:
        travelling, memory = codecs.encode(Message({"w": change}), "up", memory, base=base)
        assert CODECS in travelling.scalars
        told.append(codecs.decode(travelling, "up", base=base).tensors["w"])
        kept.append(memory)
    return told, kept


CHANGES = [noise(40, 5, 3, 3, seed=n) for n in range(6)]


@pytest.mark.parametrize(
    "stage", ["sign", "topk(0.03125)", "topk(0.1)+golomb", "smartidx(0.03125)", "topk(0.1)+int8", "int4"]
)
def test_what_was_told_and_what_is_kept_sum_to_the_true_changes(stage):
    told, kept = sent_over(f"up:w=update+feedback+{stage}", CHANGES)
    for rounds in range(1, 7):
        total = torch.stack(told[:rounds]).sum(0) + kept[rounds - 1]["residual/w"]
        assert torch.allclose(total, torch.stack(CHANGES[:rounds]).sum(0), atol=1e-5)


def test_a_warm_up_sends_more_at_first():
    # 1/16 after two messages of warm-up: 16^(-1/3), 16^(-2/3), 1/16 of 1,000 numbers.
    told, kept = sent_over("up:w=update+feedback+topk(0.0625,2)", [noise(1000, seed=n) for n in range(4)])
    assert [int((t != 0).sum()) for t in told] == [397, 157, 62, 62]
    assert int(kept[-1]["messages"]) == 4


def test_a_share_below_that_of_the_rule_is_refused():
    loose, strict = Codecs.parse(["w=topk(0.01)"]), Codecs.parse(["up:w=topk(0.05,3)"])
    travelling, _ = loose.encode(Message({"w": noise(1000)}), "up", {})
    with pytest.raises(WireError, match=r"went through topk\(0.01\), the rule here says topk\(0.05,3\)"):
        strict.decode(travelling, "up")


def test_a_tensor_that_the_request_did_not_have_goes_whole():
    codecs = Codecs.parse(["up:w=update+feedback+topk(0.1)+golomb", "up:s=update+feedback+sign"])
    message = Message({"w": noise(99), "s": noise(99, seed=1)})
    travelling, decoded = through(codecs, message, base=Message({}))
    assert_same(travelling, message)
    assert_same(decoded, message)
