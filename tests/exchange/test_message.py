"""The wire form: what is packed comes back bit for bit, sizes are exact, and damage is a WireError, nothing else."""

import json
import random
import typing
from dataclasses import dataclass

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from catchment.errors import ProtocolError, WireError
from catchment.exchange import message
from catchment.exchange.message import FileContent, Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request, Response

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
]  # fmt: skip

WEIGHTS = torch.arange(6.0).reshape(2, 3)


def there_and_back(message: Message, envelope: str = "") -> Message:
    again, same_envelope = Message.from_bytes(message.to_bytes(envelope))
    assert same_envelope == envelope
    return again


def bits(tensor: Tensor) -> list[int]:
    """The bytes of a tensor in row-major order; equal for equal NaNs, unlike values."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def assert_same(one: Message, other: Message) -> None:
    assert list(one.tensors) == list(other.tensors)
    for name, tensor in one.tensors.items():
        again = other.tensors[name]
        assert (again.dtype, again.shape, bits(again)) == (tensor.dtype, tensor.shape, bits(tensor)), name
    assert repr(one.scalars) == repr(other.scalars)  # tells True from 1 and 1 from 1.0, and NaN equals NaN


def tensor_of(dtype: torch.dtype, shape: list[int], seed: int = 0) -> Tensor:
    """Any bits at all: NaNs, infinities, subnormal numbers."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(shape)


# ---- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [[], [1], [3], [2, 3], [0], [2, 0, 3]], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype, shape):
    message = Message({"x": tensor_of(dtype, shape)})
    assert_same(there_and_back(message), message)


@pytest.mark.parametrize(
    "tensor",
    [
        WEIGHTS.t(),
        torch.arange(20)[::3],
        torch.arange(24.0).reshape(2, 3, 4)[:, 1:, ::2],
        torch.tensor([1.0, 2.0]).expand(3, 2),
        torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        WEIGHTS.clone().requires_grad_(),
        torch.nn.Parameter(WEIGHTS.clone()),
    ],
    ids=["transposed", "strided", "sliced", "expanded", "channels-last", "with-grad", "parameter"],
)
def test_how_a_tensor_lies_in_memory_does_not_matter(tensor):
    message = Message({"x": tensor})
    again = there_and_back(message).tensors["x"]
    assert again.tolist() == tensor.tolist()
    assert again.is_contiguous()
    assert not again.requires_grad


@pytest.mark.parametrize(
    "name",
    ["", " ", 'a"b', "a'b", "back\\slash", "a/b//c", "ünï", "漢字", "🌊", "line\nbreak", "nul\0", "{}", "x" * 999],
)
def test_names_may_hold_any_text(name):
    message = Message({name: WEIGHTS, "other": WEIGHTS + 1}, {name: name})
    assert_same(there_and_back(message), message)
    assert message.size() == len(message.to_bytes())


def test_tensors_keep_their_order_though_wide_ones_travel_first():
    message = Message(
        {"z": torch.ones(3, dtype=torch.int8), "a": torch.ones(1, dtype=torch.int64), "m": torch.ones(2)},
        {"late": 1, "early": 2},
    )
    assert message.layout.order == ("a", "m", "z")
    again = there_and_back(message)
    assert list(again.tensors) == ["z", "a", "m"]
    assert list(again.scalars) == ["late", "early"]


def test_every_tensor_starts_at_a_multiple_of_its_element_size():
    message = Message({f"{dtype}": torch.ones(3).to(dtype) for dtype in DTYPES}, {"odd": "x"})
    raw = message.to_bytes()
    header_length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_length])
    assert (8 + header_length) % 8 == 0
    for dtype in DTYPES:
        assert header[f"{dtype}"]["data_offsets"][0] % dtype.itemsize == 0


SCALARS = {
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "large": 2**200,
    "whole float": 1.0,
    "third": 1 / 3,
    "tiny": 5e-324,
    "minus zero": -0.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "minus inf": float("-inf"),
    "empty": "",
    "text": 'a "quoted" \\ line\n',
    "ünï": "漢字 🌊 \x00",
}


def test_scalars_of_every_kind_come_back_with_their_type():
    message = Message({}, SCALARS)
    assert_same(there_and_back(message), message)
    assert message.size() == len(message.to_bytes())


def test_an_empty_message_is_a_message():
    assert_same(there_and_back(Message({})), Message({}))


def test_what_was_read_can_be_written_to_and_is_nobody_elses():
    raw = Message({"x": WEIGHTS, "y": WEIGHTS}).to_bytes()
    first, second = Message.from_bytes(raw)[0], Message.from_bytes(raw)[0]
    first.tensors["x"].add_(1)
    assert torch.equal(first.tensors["y"], WEIGHTS)
    assert torch.equal(second.tensors["x"], WEIGHTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_message_is_a_safetensors_file(dtype):
    x = tensor_of(dtype, [2, 3])
    loaded = safetensors.torch.load(Message({"b/x": x, "a": WEIGHTS}, {"n": 1}).to_bytes("envelope"))
    assert set(loaded) == {"b/x", "a"}
    assert loaded["b/x"].dtype == dtype
    assert bits(loaded["b/x"]) == bits(x)
    assert torch.equal(loaded["a"], WEIGHTS)


def test_a_dtype_without_wire_form_is_refused_with_its_name():
    with pytest.raises(ProtocolError, match=r'tensor "x" has dtype torch.complex64, which has no wire form'):
        Message({"x": torch.zeros(1, dtype=torch.complex64)}).to_bytes()


def test_the_name_of_the_metadata_is_taken():
    with pytest.raises(ProtocolError, match='a tensor cannot be called "__metadata__"'):
        Message({"__metadata__": WEIGHTS}).size()


scalars = st.booleans() | st.integers() | st.floats() | st.text()
specs = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3))
names = st.text(max_size=8).filter(lambda name: name != "__metadata__")


@settings(deadline=None, max_examples=120)
@given(
    tensors=st.dictionaries(names, specs, max_size=5),
    values=st.dictionaries(names, scalars, max_size=4),
    envelope=st.from_regex(r"[0-9a-f]{0,60}(:[a-z_]{1,9}:[A-Za-z_0-9]{1,20})?", fullmatch=True),
)
def test_the_size_is_the_length_of_the_bytes_and_everything_comes_back(tensors, values, envelope):
    message = Message({name: tensor_of(*spec, seed) for seed, (name, spec) in enumerate(tensors.items())}, values)
    raw = message.to_bytes(envelope)
    assert message.size(envelope) == len(raw)
    assert_same(there_and_back(message, envelope), message)
    assert safetensors.torch.load(raw).keys() == message.tensors.keys()


# ---- malformed bytes --------------------------------------------------------------------------------------------


def wire(header: typing.Any, data: bytes = b"") -> bytes:
    """A wire form with any header: a dict, or its text."""
    text = header if isinstance(header, str) else json.dumps(header)
    return len(text.encode()).to_bytes(8, "little") + text.encode() + data


def headed(*, version: str = "1", scalars: str = "{}", **tensors: typing.Any) -> dict[str, typing.Any]:
    return {"__metadata__": {"catchment": version, "envelope": "", "scalars": scalars}, **tensors}


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, typing.Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


FOUR = entry("F32", [1], 0, 4)
MALFORMED = {
    "no bytes": (b"", "0 bytes given, at least 8 expected"),
    "half a length": (b"\x08\0\0\0", "4 bytes given, at least 8 expected"),
    "empty header": (wire(""), "its header cannot be read"),
    "header length beyond the end": (b"\x64" + bytes(7) + b"{}", "the header says 100 bytes, 2 are there"),
    "huge header length": (b"\xff" * 8 + b"{}", "the header says 18,446,744,073,709,551,615 bytes, 2 are there"),
    "header not JSON": (wire("nonsense"), "its header cannot be read"),
    "header not UTF-8": (b"\x02" + bytes(7) + b"\xff\xfe", "its header cannot be read"),
    "header a list": (wire([]), "its header cannot be read"),
    "header a number": (wire("7"), "its header cannot be read"),
    "header too deep": (wire('{"a":' + "[" * 100_000), "its header cannot be read"),
    "no metadata": (wire({"x": FOUR}, bytes(4)), "its header cannot be read"),
    "metadata a text": (wire({"__metadata__": "1"}), "its header cannot be read"),
    "metadata a list": (wire({"__metadata__": []}), "its header cannot be read"),
    "metadata not text": (wire({"__metadata__": {"catchment": "1", "scalars": 5}}), "invalid type"),
    "envelope a number": (wire({"__metadata__": {"catchment": "1", "envelope": 5, "scalars": "{}"}}), "invalid type"),
    "header UTF-16": (b"\x28" + bytes(7) + '{"__metadata__":{}}'.encode("utf-16"), "its header cannot be read"),
    "no version": (wire({"__metadata__": {"scalars": "{}"}}), "its header cannot be read"),
    "other version": (wire(headed(version="2")), 'message of version "2", this side reads "1"; update one'),
    "unknown dtype": (wire(headed(x=entry("F31", [1], 0, 4)), bytes(4)), "unknown variant `F31`"),
    "dtype of safetensors alone": (
        wire(headed(x=entry("C64", [1], 0, 8)), bytes(8)),
        'tensor "x" has dtype C64; known',
    ),
    "entry not a table": (wire(headed(x=4), bytes(4)), "not a message"),
    "entry without shape": (wire(headed(x={"dtype": "F32", "data_offsets": [0, 4]}), bytes(4)), "missing field"),
    "negative shape": (wire(headed(x=entry("F32", [-1], 0, 4)), bytes(4)), "invalid value"),
    "shape too large for the data": (wire(headed(x=entry("F32", [2], 0, 4)), bytes(4)), "invalid shape"),
    "shape too small for the data": (wire(headed(x=entry("F32", [1], 0, 8)), bytes(8)), "invalid shape"),
    "number of elements overflows": (wire(headed(x=entry("F32", [2**62, 2**62], 0, 4)), bytes(4)), "not a message"),
    "offset beyond the end": (wire(headed(x=entry("F32", [2], 0, 8)), bytes(4)), "not fully covered"),
    "offsets reversed": (wire(headed(x=entry("F32", [1], 4, 0)), bytes(4)), "not a message"),
    "offsets overlap": (wire(headed(x=FOUR, y=FOUR), bytes(4)), "invalid offset for tensor"),
    "a hole before the data": (wire(headed(x=entry("F32", [1], 4, 8)), bytes(8)), "invalid offset"),
    "data left over": (wire(headed(x=FOUR), bytes(5)), "not fully covered"),
    "data missing": (wire(headed(x=FOUR)), "not fully covered"),
    "scalars missing": (wire({"__metadata__": {"catchment": "1"}}), "the scalars of a message cannot be read"),
    "scalars not JSON": (wire(headed(scalars="{")), "the scalars of a message cannot be read"),
    "scalars a list": (wire(headed(scalars="[]")), "scalars of a message must be an object of plain values"),
    "scalars a number": (wire(headed(scalars="1")), "scalars of a message must be an object of plain values"),
    "a scalar that is null": (wire(headed(scalars='{"a":null}')), "must be an object of plain values"),
    "a scalar that is a list": (wire(headed(scalars='{"a":[1]}')), "must be an object of plain values"),
    "a scalar that is a table": (wire(headed(scalars='{"a":{}}')), "must be an object of plain values"),
    "a scalar of 5000 digits": (
        wire(headed(scalars=f'{{"a":{"9" * 5000}}}')),
        "the scalars of a message cannot be read",
    ),
}


@pytest.mark.parametrize(("raw", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_are_a_wire_error_that_says_why(raw, text):
    with pytest.raises(WireError) as caught:
        Message.from_bytes(raw)
    assert text in str(caught.value)


def test_a_tensor_that_is_named_twice_is_read_once():
    one = json.dumps(FOUR)
    header = json.dumps(headed())[:-1] + f',"x":{one},"x":{one}}}'
    assert list(Message.from_bytes(wire(header, bytes(4)))[0].tensors) == ["x"]


def test_scalars_that_are_too_deep_are_a_wire_error():
    with pytest.raises(WireError, match="the scalars of a message cannot be read"):
        Message.from_bytes(wire(headed(scalars="[" * 100_000)))


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_an_empty_tensor_with_an_impossible_shape_is_a_wire_error(size):
    with pytest.raises(WireError):
        Message.from_bytes(wire(headed(x=entry("F32", [0, size], 0, 0))))


SAMPLE = Message(
    {
        "weights/a": WEIGHTS,
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "steps": torch.tensor(3),
    },
    {"samples": 12, "loss": float("nan"), "text": "hé"},
)
REQUEST = Request(3, "local_training", 1, 0, 7, SAMPLE)
RESPONSE = Response(3, 7, SAMPLE, macs=100, seconds=0.25)


def read(kind: typing.Any, raw: bytes) -> bool:
    """Whether bytes are a message; if so it must be a sound one. Anything but a WireError passes through."""
    try:
        found = kind.from_bytes(raw)
    except WireError:
        return False
    message = found[0] if kind is Message else found.body or Message({})
    assert_same(there_and_back(message), message)
    return True


@pytest.mark.parametrize("whole", [REQUEST, RESPONSE], ids=["request", "response"])
def test_a_message_cut_short_at_any_length_is_a_wire_error(whole):
    raw = whole.to_bytes()
    assert [length for length in range(len(raw)) if read(type(whole), raw[:length])] == []
    assert read(type(whole), raw)
    assert not read(type(whole), raw + b"\0")


@pytest.mark.parametrize("whole", [REQUEST, RESPONSE], ids=["request", "response"])
def test_any_single_changed_byte_gives_a_wire_error_or_a_sound_message(whole):
    raw = whole.to_bytes()
    sound = 0
    for place, byte in enumerate(raw):
        others = {byte ^ 1 << bit for bit in range(8)} | set(b'\0\xff"{}[],:-9 \\u')
        for other in others - {byte}:
            sound += read(type(whole), raw[:place] + bytes([other]) + raw[place + 1 :])
    assert sound > 0  # a change in the data of a tensor goes unnoticed


def test_twenty_thousand_random_inputs_give_a_wire_error_or_a_sound_message():
    chance = random.Random(0)
    raw = REQUEST.to_bytes()
    words = [
        b"{",
        b"}",
        b'"__metadata__":',
        b'{"catchment":"1","envelope":"","scalars":"{}"}',
        b'"x":',
        b",",
        b"[",
        b"]",
    ]
    words += [
        b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}',
        b"null",
        b"1e999",
        b"-1",
        b'"\\ud800"',
        b"\0",
        b"NaN",
    ]

    def noise() -> bytes:
        return chance.randbytes(chance.randrange(64))

    def lengthened() -> bytes:
        body = noise()
        return chance.randrange(len(body) + 2).to_bytes(8, "little") + body

    def wordy() -> bytes:
        text = b"".join(chance.choices(words, k=chance.randrange(1, 12)))
        return len(text).to_bytes(8, "little") + text + bytes(chance.choice([0, 4, 8]))

    def spliced() -> bytes:
        a, b, c, d = sorted(chance.randrange(len(raw) + 1) for _ in range(4))
        middle = chance.choice([raw[c:d] + raw[b:c] + raw[a:b], noise(), raw[a:b] * 2, b""])
        return raw[:a] + middle + raw[d:]

    makers = (noise, lengthened, wordy, spliced)
    for number in range(20_000):
        read(Request if number % 2 else Message, makers[number % 4]())


# ---- requests and responses -------------------------------------------------------------------------------------


def test_a_request_comes_back_with_every_field():
    request = Request(1, "local_training", 2, 3, 4, SAMPLE, purpose="evaluation", resumes=5, start=6, base=7)
    again = Request.from_bytes(request.to_bytes())
    assert again._replace(body=SAMPLE) == request
    assert_same(again.body, SAMPLE)
    assert again.aside
    assert not REQUEST.aside
    assert request.size() == len(request.to_bytes())


def test_a_response_comes_back_with_every_field():
    response = Response(1, 2, SAMPLE, macs=2**63, seconds=1234.567891, aside=True)
    again = Response.from_bytes(response.to_bytes())
    assert again._replace(body=SAMPLE) == response
    assert_same(again.body, SAMPLE)
    assert response.size() == len(response.to_bytes())


def test_seconds_are_kept_to_the_microsecond():
    assert Response.from_bytes(RESPONSE._replace(seconds=0.12345678).to_bytes()).seconds == 0.123457


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("aside", [True, False])
def test_a_response_without_body_carries_its_reason_and_counts_no_bytes(failed, aside):
    response = Response(1, 2, None, macs=3, seconds=0.5, error='ValueError: "é"', failed=failed, aside=aside)
    assert Response.from_bytes(response.to_bytes()) == response
    assert response.size() == 0


def test_an_error_among_the_scalars_of_a_body_is_not_the_reason_of_a_failure():
    response = Response(1, 2, Message({}, {"error": "mine"}))
    again = Response.from_bytes(response.to_bytes())
    assert again.error == ""
    assert again.body.scalars == {"error": "mine"}


def test_the_width_of_an_envelope_does_not_depend_on_values():
    most = 2**32 - 1
    small = Request(0, "h", 0, 0, 0, SAMPLE)
    large = Request(most, "h", most, most, most, SAMPLE, resumes=65_535, start=most, base=most, rate_drops=65_535)
    assert small.size() == large.size()
    assert Request.from_bytes(large.to_bytes())._replace(body=SAMPLE) == large
    quick = Response(0, 0, SAMPLE)
    slow = Response(most, most, SAMPLE, macs=2**64 - 1, seconds=1e8, failed=True, aside=True)
    assert quick.size() == slow.size()


@pytest.mark.parametrize(
    "envelope",
    ["", "nonsense", "0" * 56, "0" * 55 + ":training:h", "0" * 57 + ":training:h", "0" * 56 + ":training",
     "0" * 56 + ":training:h:more", "g" * 56 + ":training:h", RESPONSE.envelope],
)  # fmt: skip
def test_a_wrong_envelope_is_not_a_request(envelope):
    with pytest.raises(WireError, match="not a request: envelope"):
        Request.from_bytes(SAMPLE.to_bytes(envelope))


@pytest.mark.parametrize("envelope", ["", "nonsense", "0" * 44, "0" * 46, "g" * 45, REQUEST.envelope])
def test_a_wrong_envelope_is_not_a_response(envelope):
    with pytest.raises(WireError, match="not a response: envelope"):
        Response.from_bytes(SAMPLE.to_bytes(envelope))


@pytest.mark.parametrize("number", ["-0000001", "+0000001", " 0000001", "0000_001"])
def test_a_number_of_an_envelope_is_eight_hexadecimal_digits(number):
    assert not read(Request, SAMPLE.to_bytes(number + "0" * 48 + ":training:h"))
    assert not read(Response, SAMPLE.to_bytes(number + "0" * 37))


@pytest.mark.parametrize("handler", ["entraîner", "学習"])
def test_the_size_is_exact_for_handlers_in_any_language(handler):
    request = Request(0, handler, 1, 0, 0, SAMPLE)
    assert Request.from_bytes(request.to_bytes()).handler == handler
    assert request.size() == len(request.to_bytes())


# ---- payloads ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Everything(Payload):
    features: Tensor
    weights: dict[str, Tensor]
    samples: int
    rate: float
    done: bool
    text: str
    logits: Tensor | None = None
    extra: dict[str, Tensor] | None = None
    note: str | None = None
    either: int | str | None = None


def everything(**changes: typing.Any) -> Everything:
    given = {"features": WEIGHTS, "weights": {"a": WEIGHTS}, "samples": 1, "rate": 0.5, "done": True, "text": "x"}
    return Everything(**{**given, **changes})


def test_a_payload_packs_to_flat_names_and_comes_back():
    payload = everything(weights={"b/c": WEIGHTS, "a": WEIGHTS + 1}, logits=WEIGHTS + 2, either="text")
    message = payload.pack()
    assert list(message.tensors) == ["features", "weights/b/c", "weights/a", "logits"]
    assert message.scalars == {"samples": 1, "rate": 0.5, "done": True, "text": "x", "either": "text"}
    again = Everything.unpack(there_and_back(message))
    assert torch.equal(again.features, WEIGHTS)
    assert list(again.weights) == ["b/c", "a"]
    assert torch.equal(again.weights["a"], WEIGHTS + 1)
    assert torch.equal(again.logits, WEIGHTS + 2)
    assert (again.samples, again.rate, again.done, again.text, again.either) == (1, 0.5, True, "x", "text")
    assert (again.extra, again.note) == (None, None)


def test_false_zero_and_empty_text_are_not_none():
    again = Everything.unpack(everything(samples=0, rate=0.0, done=False, text="", note="").pack())
    assert (again.samples, again.rate, again.done, again.text, again.note) == (0, 0.0, False, "", "")


def test_an_empty_dict_that_must_be_there_stays_an_empty_dict():
    assert Everything.unpack(everything(weights={}).pack()).weights == {}


def test_tensors_with_a_graph_are_detached():
    tensor = torch.ones(2, requires_grad=True) * 2
    message = everything(features=tensor, weights={"a": tensor}).pack()
    assert not any(t.requires_grad for t in message.tensors.values())


def test_a_payload_without_fields_crosses_as_an_empty_message():
    @dataclass(frozen=True)
    class Empty(Payload):
        pass

    assert Empty().pack().tensors == {}
    assert Empty.unpack(Message({})) == Empty()


def test_two_fields_of_which_one_name_begins_with_the_other_are_kept_apart():
    @dataclass(frozen=True)
    class Alike(Payload):
        a: dict[str, Tensor]
        ab: dict[str, Tensor]

    again = Alike.unpack(Alike({"x": WEIGHTS}, {"y": WEIGHTS}).pack())
    assert (list(again.a), list(again.ab)) == (["x"], ["y"])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("features", [1.0], "list"),
        ("features", {"a": WEIGHTS}, "dict"),
        ("features", 1.0, "float"),
        ("weights", WEIGHTS, "Tensor"),
        ("weights", [WEIGHTS], "list"),
        ("samples", WEIGHTS, "Tensor"),
        ("samples", b"bytes", "bytes"),
        ("samples", 1j, "complex"),
        ("note", object(), "object"),
    ],
)
def test_a_value_of_another_kind_than_its_field_is_refused(field, value, said):
    with pytest.raises(ProtocolError, match=rf"Everything\.{field} is a {said}; a payload field is declared and given"):
        everything(**{field: value}).pack()


@pytest.mark.parametrize("value", [{"a": 1.0}, {"a": None}, {1: WEIGHTS}], ids=["number", "none", "number-as-key"])
def test_what_is_in_a_dict_must_be_tensors_by_text(value):
    with pytest.raises(ProtocolError, match=r"Everything\.weights"):
        everything(weights=value).pack()


@pytest.mark.parametrize("field", ["features", "weights", "samples"])
def test_none_for_a_field_that_must_be_there_is_refused_where_it_is_packed(field):
    with pytest.raises(ProtocolError, match=rf"Everything\.{field} is None"):
        everything(**{field: None}).pack()


@pytest.mark.parametrize(
    ("field", "value"), [("samples", "12"), ("samples", 1.5), ("rate", "x"), ("text", 1), ("either", 1.5)]
)
def test_a_scalar_of_another_type_is_refused_on_both_sides(field, value):
    with pytest.raises(ProtocolError, match=rf"Everything\.{field}"):
        everything(**{field: value}).pack()
    good = everything().pack()
    with pytest.raises(WireError, match=field):
        Everything.unpack(Message(good.tensors, {**good.scalars, field: value}))


def test_a_whole_number_is_good_enough_for_a_float_field():
    assert Everything.unpack(everything(rate=1).pack()).rate == 1


@pytest.mark.parametrize(
    "annotation", [list[int], dict[str, int], dict[int, Tensor], bytes, object, Tensor | int, None]
)
def test_a_field_that_cannot_cross_is_refused_by_its_declaration(annotation):
    class Odd(Payload):
        __annotations__ = {"x": annotation}

    odd = dataclass(frozen=True)(Odd)
    with pytest.raises(ProtocolError, match=r"Odd\.x is declared as .*; a payload field is a Tensor"):
        odd(WEIGHTS).pack()
    with pytest.raises(ProtocolError, match=r"Odd\.x is declared as"):
        odd.unpack(Message({}))


def test_optional_is_the_same_as_or_none():
    class Old(Payload):
        __annotations__ = {"x": typing.Optional[Tensor]}  # noqa: UP045

    old = dataclass(frozen=True)(Old)
    assert old.unpack(old(None).pack()).x is None


def test_a_payload_that_is_no_dataclass_is_refused_with_the_fix():
    class Bare(Payload):
        x: Tensor

    for use in (lambda: Bare().pack(), lambda: Bare.unpack(Message({}))):
        with pytest.raises(ProtocolError, match=r"Bare must be a dataclass: write @dataclass\(frozen=True\) above it"):
            use()


@pytest.mark.parametrize("field", ["features", "samples", "text"])
def test_a_missing_field_is_a_wire_error(field):
    full = everything().pack()
    tensors = {name: t for name, t in full.tensors.items() if name != field}
    values = {name: s for name, s in full.scalars.items() if name != field}
    with pytest.raises(WireError, match=f"Everything needs {field}, which the message does not have"):
        Everything.unpack(Message(tensors, values))


def test_tensors_without_a_place_are_a_wire_error():
    full = everything().pack()
    with pytest.raises(WireError, match=r"Everything has no field for tensors more, other/x$"):
        Everything.unpack(Message({**full.tensors, "other/x": WEIGHTS, "more": WEIGHTS}, full.scalars))


@pytest.mark.parametrize("name", ["features/x", "samples/x", "weights"])
def test_a_tensor_beside_a_field_of_another_kind_is_named(name):
    full = everything().pack()
    with pytest.raises(WireError, match=f"Everything has no field for tensors {name}$"):
        Everything.unpack(Message({**full.tensors, name: WEIGHTS}, full.scalars))


def test_scalars_without_a_place_are_a_wire_error():
    full = everything().pack()
    with pytest.raises(WireError, match="Everything has no field for scalars more"):
        Everything.unpack(Message(full.tensors, {**full.scalars, "more": 1}))


def test_an_optional_dict_that_is_empty_stays_empty():
    assert Everything.unpack(everything(extra={}).pack()).extra == {}


def test_files_have_the_same_bytes_and_leave_no_layout_behind():
    tensors = {f"{number}/model/weight": torch.ones(number) for number in range(3)}
    known = message._layout.cache_info().currsize
    assert FileContent(tensors, {"n": 1}).to_bytes() == Message(tensors, {"n": 1}).to_bytes()
    assert message._layout.cache_info().currsize <= known + 1
    for number in range(3, 9):
        FileContent({f"{number}/model/weight": torch.ones(2)}).to_bytes()
    assert message._layout.cache_info().currsize <= known + 1
