"""Coded messages from a side that cannot be trusted: a valid message or a WireError, nothing else."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from catchment.codecs import CODECS, Codecs
from catchment.errors import WireError
from catchment.exchange.message import Message

RULES = Codecs.parse(
    [
        "quantised=int8",
        "nibbles=int4+sparse",
        "squeezed=int4+sparse+zstd",
        "few=topk(0.05)+fp16",
        "flags=sparse",
        "up:weights=update+topk(0.1)+int8+zstd",
        "change=bf16",
        "up:gaps=topk(0.1,2)+golomb",
        "mask=golomb",
        "up:kernels=update+smartidx(0.1)+int8",
        "signs=sign",
    ]
)


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


BASE = Message({"weights": noise(30, 40, seed=1), "kernels": noise(12, 10, 3, 3, seed=9)})
ORIGINAL = Message(
    {
        "quantised": noise(20, 3, 15, seed=2),
        "nibbles": noise(999, seed=3).relu(),
        "plain": torch.arange(5),
        "squeezed": (noise(10, 5, 33, seed=4) - 1).relu(),
        "few": noise(50, 50, seed=5),
        "flags": noise(2001, seed=6) > 2,
        "weights": noise(30, 40, seed=7),
        "change": noise(400, seed=8),
        "gaps": noise(30, 30, seed=10),
        "mask": noise(900, seed=11) > 1,
        "kernels": noise(12, 10, 3, 3, seed=12),
        "signs": noise(500, seed=13),
    },
    {"loss": 1.5},
)
SENDER = {"messages": torch.tensor(1)}
CODED = RULES.encode(ORIGINAL, "up", SENDER, base=BASE)[0]
HEADER = json.loads(CODED.scalars[CODECS])


def decode(message: Message) -> Message:
    return RULES.decode(message, "up", base=BASE)


def with_header(header: Any) -> Message:
    return Message(CODED.tensors, {**CODED.scalars, CODECS: json.dumps(header)})


def test_the_sample_uses_every_stage_and_is_sound():
    chains = [text.split("=")[1] for text in HEADER["chains"]]
    assert chains == [
        "int8", "int4+sparse", "int4+sparse+zstd", "topk(0.05)+fp16", "sparse", "update+topk(0.1)+int8+zstd",
        "bf16", f"topk({0.1 ** (2 / 3)})+golomb", "golomb", "update+smartidx(0.1)+int8", "sign",
    ]  # fmt: skip
    decoded = decode(CODED)
    assert list(decoded.tensors) == list(ORIGINAL.tensors)
    assert all(decoded.tensors[n].shape == tensor.shape for n, tensor in ORIGINAL.tensors.items())


# ---- the header -------------------------------------------------------------------------------------------------

SPOILED = {
    "not a text": (5, r"the scalar \(codecs\) of a message cannot be read"),
    "not JSON": ("{", "cannot be read"),
    "a list": ("[]", "cannot be read"),
    "too deep": ("[" * 100_000, "cannot be read"),
    "no chains": ('{"tensors":[]}', "cannot be read"),
    "chains a text": ('{"chains":"x","tensors":[]}', "must list chains and tensors"),
    "a chain that is a number": ('{"chains":[7],"tensors":[]}', "is a int; a text was expected"),
    "an unknown dtype": ('{"chains":["float31=int8"],"tensors":[]}', "has no known dtype; known: float64"),
    "an unknown stage": ('{"chains":["float32=int9"],"tensors":[]}', 'unknown stage "int9"'),
    "stages in disorder": ('{"chains":["float32=zstd+int8"],"tensors":[]}', "has int8 after zstd"),
    "int8 of integers": ('{"chains":["int64=int8"],"tensors":[]}', "does nothing for int64"),
    "an item that is a number": ('{"chains":[],"tensors":[1]}', "item 0 of a coded message is not a chain, a shape"),
    "an item that is false": ('{"chains":[],"tensors":[false]}', "is not a chain, a shape"),
    "a chain that is not there": ('{"chains":["float32=int8"],"tensors":[[1,[4]]]}', "not there; there are 1"),
    "a shape of halves": ('{"chains":["float32=int8"],"tensors":[[0,[0.5]]]}', "impossible shape"),
    "a shape below zero": ('{"chains":["float32=int8"],"tensors":[[0,[-1]]]}', "impossible shape"),
    "a shape of nothing": ('{"chains":["float32=int8"],"tensors":[[0,[0]]]}', "impossible shape"),
    "65 dimensions": (json.dumps({"chains": ["float32=int8"], "tensors": [[0, [1] * 65]]}), "impossible shape"),
    "a shape too large to count": ('{"chains":["float32=int8"],"tensors":[[0,[99999999,99999999]]]}', "; at most"),
    "more than 64 GiB": (
        json.dumps({"chains": ["float32=topk(0.1)"], "tensors": [[0, [2**32]]] * 5}),
        "has 85,899,345,920 bytes after decoding; at most 68,719,476,736 are accepted",
    ),
    "a count for topk": ('{"chains":["float32=topk(0.5)+golomb"],"tensors":[[0,[4],2]]}', "where its chain needs 0"),
    "a mask without a count": ('{"chains":["bool=golomb"],"tensors":[[0,[4]]]}', "golomb of truth values"),
    "golomb of integers": ('{"chains":["int64=golomb"],"tensors":[]}', "does nothing for int64"),
    "a count without sparse": ('{"chains":["float32=int8"],"tensors":[[0,[4],2]]}', "1 counts where its chain needs 0"),
    "sparse without a count": ('{"chains":["float32=sparse"],"tensors":[[0,[4]]]}', "0 counts where its chain needs 1"),
    "more kept than there are": ('{"chains":["float32=sparse"],"tensors":[[0,[4],5]]}', "keeps 5 of 4 values"),
    "more kept than topk left": (
        '{"chains":["float32=topk(0.5)+sparse"],"tensors":[[0,[4],3]]}', "keeps 3 of 2 values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_header_is_refused_with_the_reason(case):
    header, reason = SPOILED[case]
    with pytest.raises(WireError, match=reason):
        decode(Message(CODED.tensors, {CODECS: header}))


def test_parts_must_be_all_there_in_order_and_nothing_else():
    parts = list(CODED.tensors.items())
    with pytest.raises(WireError, match='has "quantised:values" where part "quantised:ranges" was expected'):
        decode(Message(dict(parts[1:]), CODED.scalars))
    header = '{"chains":["float32=int8"],"tensors":[[0,[4]]]}'
    with pytest.raises(WireError, match='has nothing where part "x:values" was expected'):
        decode(Message({"x:ranges": torch.zeros(2)}, {CODECS: header}))
    with pytest.raises(WireError, match="lists 12 tensors, and has fewer"):
        decode(Message(dict(parts[:2]), CODED.scalars))
    with pytest.raises(WireError, match='has tensors left over, from "more" on'):
        decode(Message({**CODED.tensors, "more": torch.zeros(1)}, CODED.scalars))


def test_two_tensors_cannot_have_one_name():
    sent = RULES.encode(Message({"quantised": noise(500, seed=0)}), "up", {})[0]
    header = json.loads(sent.scalars[CODECS])
    header["tensors"].append(0)
    twice = Message({**sent.tensors, "quantised": torch.zeros(1)}, {CODECS: json.dumps(header)})
    with pytest.raises(WireError, match='two tensors "quantised"'):
        decode(twice)


# ---- anything at all --------------------------------------------------------------------------------------------


def assert_decodes_or_is_refused(message: Message) -> None:
    try:
        decoded = decode(message)
    except WireError as error:
        assert str(error)  # noqa: PT017
    else:
        assert decoded.size() == len(decoded.to_bytes())
        assert CODECS not in decoded.scalars


names = st.sampled_from(sorted(CODED.tensors))
dtypes = st.sampled_from([torch.uint8, torch.int32, torch.float32, torch.float16, torch.bool, torch.int64])


@settings(deadline=None, max_examples=150)
@given(name=names, places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bits(name, places):
    raw = CODED.tensors[name].clone()
    flat = raw.view(torch.uint8)
    for place, flip in places:
        flat[place % len(flat)] ^= flip
    assert_decodes_or_is_refused(Message({**CODED.tensors, name: raw}, CODED.scalars))


@settings(deadline=None, max_examples=80)
@given(name=names, dtype=dtypes, shape=st.lists(st.integers(0, 40), max_size=3))
def test_parts_of_another_form(name, dtype, shape):
    assert_decodes_or_is_refused(Message({**CODED.tensors, name: torch.zeros(shape, dtype=dtype)}, CODED.scalars))


@settings(deadline=None, max_examples=80)
@given(name=names, start=st.integers(-50, 50), end=st.integers(-50, 5000))
def test_parts_cut_short(name, start, end):
    assert_decodes_or_is_refused(Message({**CODED.tensors, name: CODED.tensors[name][start:end]}, CODED.scalars))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(HEADER["chains"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_headers_with_something_else_in_them(data):
    header = json.loads(CODED.scalars[CODECS])
    place, key = header, data.draw(st.sampled_from(sorted(header)))
    while isinstance(place[key], list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.integers(0, len(place) - 1))
    place[key] = data.draw(json_values | st.integers(0, 3000))
    assert_decodes_or_is_refused(with_header(header))


@settings(deadline=None, max_examples=80)
@given(text=st.text() | json_values.map(json.dumps) | st.integers() | st.booleans())
def test_headers_of_any_kind(text):
    assert_decodes_or_is_refused(Message(CODED.tensors, {CODECS: text}))


@settings(deadline=None, max_examples=50)
@given(order=st.permutations(sorted(CODED.tensors)), count=st.integers(0, len(CODED.tensors)))
def test_parts_in_another_order(order, count):
    assert_decodes_or_is_refused(Message({name: CODED.tensors[name] for name in order[:count]}, CODED.scalars))


# ---- very many --------------------------------------------------------------------------------------------------

SINGLES = [
    RULES.encode(Message({name: tensor}), "up", SENDER, base=BASE)[0]
    for name, tensor in ORIGINAL.tensors.items()
    if name != "plain"
]  # one tensor a message: many are decoded in a second


def spoiled(random: np.random.Generator) -> Message:
    """A message with some of its bytes changed, cut off or added, or with other numbers in its header."""
    single = SINGLES[random.integers(len(SINGLES))]
    tensors, scalars = dict(single.tensors), dict(single.scalars)
    name = list(tensors)[random.integers(len(tensors))]
    raw, kind = tensors[name].clone(), random.integers(6)
    if kind <= 2:
        flat = raw.view(torch.uint8).numpy()
        places = random.integers(len(flat), size=random.integers(1, 9))
        flat[places] = random.integers(256, size=len(places))
    elif kind == 3:
        raw = raw[: random.integers(len(raw) + 1)]
    elif kind == 4:
        raw = torch.cat([raw, raw[: random.integers(len(raw) + 1)]])
    else:
        text = str(scalars[CODECS])
        digits = [place for place, letter in enumerate(text) if letter.isdigit()]
        place = digits[random.integers(len(digits))]
        scalars[CODECS] = text[:place] + str(random.integers(12)) + text[place + 1 :]
    tensors[name] = raw
    return Message(tensors, scalars)


def fuzz(count: int, seed: int) -> int:
    """How many of this many spoiled messages can still be decoded; all others were refused."""
    random = np.random.default_rng(seed)
    decoded = 0
    for _ in range(count):
        try:
            decode(spoiled(random))
            decoded += 1
        except WireError as error:
            assert str(error)  # noqa: PT017
    return decoded


def test_thousands_of_spoiled_messages():
    assert 200 < fuzz(3_000, seed=0) < 2_800


@pytest.mark.slow
def test_a_hundred_thousand_spoiled_messages():
    assert 10_000 < fuzz(100_000, seed=1) < 90_000


@pytest.mark.slow
def test_a_hundred_thousand_spoiled_strings_of_bytes():
    """The whole wire form, spoiled anywhere: a message, or a WireError."""
    random, read = np.random.default_rng(2), 0
    wholes = [np.frombuffer(single.to_bytes(), dtype=np.uint8) for single in SINGLES]
    for _ in range(100_000):
        whole = wholes[random.integers(len(wholes))]
        raw = whole[: random.integers(len(whole) + 1)].copy() if random.random() < 0.2 else whole.copy()
        if len(raw):
            places = random.integers(len(raw), size=random.integers(1, 5))
            raw[places] = random.integers(256, size=len(places))
        try:
            decode(Message.from_bytes(raw.tobytes())[0])
            read += 1
        except WireError as error:
            assert str(error)  # noqa: PT017
    assert 1_000 < read < 99_000
