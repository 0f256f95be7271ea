"""Stages that users bring: named in a rule, watched on both sides, never imported because a message says so."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
import torch
from worlds import experiment

import catchment
from catchment.codecs import CODECS, CannotCarry, Chain, Codecs, Form, Rule, Stage, put
from catchment.codecs.lossless import Zstd
from catchment.codecs.quantization import Int8
from catchment.codecs.sparsification import TopK
from catchment.errors import CatchmentError, ExperimentError, ProtocolError, WireError
from catchment.exchange.message import Message

X = torch.randn(1000, generator=torch.Generator().manual_seed(0))
HALVES = """
from dataclasses import dataclass
import torch
from worlds import experiment
from catchment import Stage
from catchment.codecs import Chain, put
from catchment.codecs.lossless import Zstd

@dataclass(frozen=True)
class Halves(Stage):
    loses = True
    steps: int = 2
    mode: str = "nearest"
    wide: bool = False

    def __post_init__(self):
        if self.steps == 13:
            raise RuntimeError("thirteen")

    def encode(self, parts, context):
        return put(parts, (parts["values"] * self.steps).round().to(torch.int8))

    def layout(self, before, count):
        return put(before, before["values"]._replace(dtype=torch.int8))

    def decode(self, parts, context):
        return put(parts, parts["values"].to(context.form.dtype) / self.steps)

SMALL = Chain(Halves(4), Zstd())
number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's, beside the experiment file."""
    (tmp_path / "mine_of_user.py").write_text(HALVES)
    monkeypatch.syspath_prepend(tmp_path)
    yield "mine_of_user"
    sys.modules.pop("mine_of_user", None)


def sent(codecs: Codecs, values: torch.Tensor = X, memory: dict | None = None) -> Message:
    return codecs.encode(Message({"x": values}), "up", memory or {})[0]


def chains(message: Message) -> list[str]:
    return json.loads(str(message.scalars[CODECS]))["chains"]


# ---- in a rule --------------------------------------------------------------------------------------------------


def test_a_stage_is_named_in_a_rule_and_in_the_message(mine):
    codecs = Codecs.parse([f"x={mine}:Halves+zstd"])
    travelling = sent(codecs)
    assert chains(travelling) == [f"float32={mine}:Halves+zstd"]
    assert travelling.size() < 1000
    assert torch.equal(codecs.decode(travelling, "up").tensors["x"], (X * 2).round() / 2)


def test_options_are_written_in_the_order_of_the_fields(mine):
    texts = ["Halves", "Halves(4)", "Halves(4,down)", "Halves(2,nearest,true)"]
    assert [str(Codecs.parse([f"x={mine}:{text}"]).rules[0].chain) for text in texts] == [f"{mine}:{t}" for t in texts]


def test_a_name_may_stand_for_a_whole_chain(mine):
    assert str(Codecs.parse([f"x={mine}:SMALL"]).rules[0].chain) == f"{mine}:Halves(4)+zstd"
    assert Chain(TopK(0.1), Chain(Int8())) == Chain(TopK(0.1), Int8())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Halves(a)", r'Halves\(a\) cannot be used: "a" is not a whole number; its options are steps, mode, wide'),
        ("Halves(1,2,3)", '"3" was given where bool is expected'),
        ("Halves(1,2,true,4)", "4 options were given"),
        ("Halves(13)", "cannot be used: thirteen"),
        ("Half", 'module mine_of_user has no "Half"; did you mean "Halves"?'),
        ("number", "mine_of_user:number is a int; a subclass of catchment.Stage, or a Chain, is expected"),
        ("SMALL(2)", "SMALL has no options"),
        ("Halves+int8", "has both mine_of_user:Halves and int8, .*; mine_of_user:Halves is for precision"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(mine, text, reason):
    with pytest.raises(ExperimentError, match=reason.replace("?", r"\?")):
        Codecs.parse([f"x={mine}:{text}"])


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(
        ExperimentError, match=r'"x=nowhere:Stage": .*there is no module "nowhere" beside the experiment'
    ):
        Codecs.parse(["x=nowhere:Stage"])


def test_two_stages_cannot_have_one_name():
    class Other(Int8):
        name = "int8"

    with pytest.raises(ExperimentError, match=r'two stages in wire\.codecs are named "int8"'):
        Codecs.parse([Rule("x", Chain(Other())), "y=int8"])


# ---- for more than bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise(Stage):
    """Adds a number to each, in place of a drawn one; makes nothing smaller."""

    size: float = 0.5

    def encode(self, parts, context):
        return put(parts, parts["values"] + self.size)


class Hidden(Noise):
    silent = True


class Early(Noise):
    place = "correction"


@pytest.mark.parametrize(
    "chain", [Chain(Noise()), Chain(Hidden()), Chain(Early()), Chain(Early(), Int8()), Chain(Hidden(), Zstd())], ids=str
)
@pytest.mark.parametrize("count", [1, 10_000])
def test_a_stage_that_is_not_there_for_bytes_is_never_left_out(chain, count):
    codecs = Codecs.parse([Rule("x", chain)])
    travelling = sent(codecs, torch.zeros(count))
    decoded = codecs.decode(travelling, "up").tensors
    assert torch.equal(decoded["x"], torch.full((count,), 0.5))


def test_noise_of_which_the_receiver_need_not_know_costs_nothing():
    travelling = sent(Codecs.parse([Rule("x", Chain(Hidden()))]))
    assert torch.equal(travelling.tensors["x"], X + 0.5)
    assert travelling.scalars == {}


def test_a_message_that_cannot_be_coded_is_not_sent_without_noise():
    message = Message({"x": X, "x:values": X})
    with pytest.raises(ProtocolError, match=r'^"x" has to be coded, and "x:values" is also a tensor; rename one$'):
        Codecs.parse([Rule("x", Chain(Noise()))]).encode(message, "up", {})


# ---- from the other side ----------------------------------------------------------------------------------------


def test_a_message_does_not_make_this_side_import_anything(mine):
    header = {"chains": [f"float32={mine}:Halves"], "tensors": [[0, [4]]]}
    message = Message({"x:values": torch.zeros(4, dtype=torch.int8)}, {CODECS: json.dumps(header)})
    with pytest.raises(WireError, match=f'unknown stage "{mine}:Halves"'):
        Codecs.parse(["x=int8"]).decode(message, "up")
    assert mine not in sys.modules


def test_other_options_than_those_of_the_rule_are_refused(mine):
    travelling = sent(Codecs.parse([f"x={mine}:Halves(4)"]))
    with pytest.raises(
        WireError, match=r"it went through mine_of_user:Halves\(4\), the rule here says mine_of_user:Halves;"
    ):
        Codecs.parse([f"x={mine}:Halves"]).decode(travelling, "up")


# ---- stages that misbehave --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sound(Stage):
    """Half precision; what is derived from it does something wrong."""

    loses = True

    def encode(self, parts, context):
        return put(parts, parts["values"].half())

    def layout(self, before, count):
        return put(before, before["values"]._replace(dtype=torch.float16))

    def decode(self, parts, context):
        return put(parts, parts["values"].to(context.form.dtype))


class RaisesInEncode(Sound):
    def encode(self, parts, context):
        raise ZeroDivisionError("by nothing")


class GivesNoTensor(Sound):
    def encode(self, parts, context):
        return put(parts, [1.0])


class GivesAnotherShape(Sound):
    def encode(self, parts, context):
        return put(parts, parts["values"].half()[1:])


class GivesAnotherPart(Sound):
    def encode(self, parts, context):
        return put(parts, parts["values"].half(), more=torch.zeros(1))


class ChangesInPlace(Sound):
    def encode(self, parts, context):
        return put(parts, parts["values"].mul_(2).half())


class TooManyBits(Sound):
    def encode(self, parts, context):
        return put(parts, torch.full_like(parts["values"], 4, dtype=torch.uint8))

    def layout(self, before, count):
        return put(before, Form(torch.uint8, before["values"].shape, bits=2))


class ThreeBits(TooManyBits):
    def layout(self, before, count):
        return put(before, Form(torch.uint8, before["values"].shape, bits=3))


class StrangeName(Sound):
    def encode(self, parts, context):
        return put(parts, parts["values"].half(), **{"a:b": torch.zeros(1)})

    def layout(self, before, count):
        return put(before, before["values"]._replace(dtype=torch.float16), **{"a:b": Form(torch.float32, (1,))})


class TakenName(Sound):
    def encode(self, parts, context):
        return put(parts, parts["values"].half(), positions=parts["positions"] + 1)


class CannotHave(Sound):
    def encode(self, parts, context):
        raise CannotCarry("numbers")


class RemembersMore(Sound):
    remembers = ("last",)

    def remember(self, given, received, context):
        return {"first": given["values"]}


ENCODING = {
    RaisesInEncode: 'cannot encode "x": ZeroDivisionError: by nothing',
    GivesNoTensor: 'cannot encode "x": its values is a list; torch.float16 of shape',
    GivesAnotherShape: r"its values is torch.float16 of shape \[99\]; torch.float16 of shape \[100\] was expected",
    GivesAnotherPart: 'cannot encode "x": it gave .*more.*; its layout has .*values',
    ChangesInPlace: 'cannot encode "x": it changed a tensor in place; clone it first',
    TooManyBits: "its values has a 4, which does not fit into 2 bits",
    ThreeBits: "its values has 3 bits of torch.uint8; 1, 2 or 4 bits",
    StrangeName: 'its part "a:b" needs a name of letters',
    TakenName: "its part positions is also one of an earlier stage; give it another name",
    RemembersMore: "cannot remember: it gave first, which `remembers` does not name",
}


@pytest.mark.parametrize("kind", ENCODING, ids=lambda kind: kind.__name__)
def test_a_stage_that_encodes_wrongly_is_named(kind):
    codecs = Codecs.parse([Rule("x", Chain(TopK(0.1), kind()), "up")])
    with pytest.raises(ProtocolError, match=rf"^stage {__name__}:{kind.__name__} .*{ENCODING[kind]}"):
        sent(codecs)


def test_what_a_stage_cannot_carry_is_said_of_the_tensor():
    with pytest.raises(ProtocolError, match=f"^x holds numbers, which {__name__}:CannotHave cannot carry$"):
        sent(Codecs.parse([Rule("x", Chain(CannotHave()))]))


class RaisesInDecode(Sound):
    def decode(self, parts, context):
        raise KeyError("scale")


class RefusesItself(Sound):
    def decode(self, parts, context):
        raise WireError("a scale is missing")


class GivesBackAnotherShape(Sound):
    def decode(self, parts, context):
        return put(parts, torch.zeros(7))


class GivesBackNothing(Sound):
    def decode(self, parts, context):
        return {}


class GivesBackAList(Sound):
    def decode(self, parts, context):
        return [1]


class DecodesInPlace(Sound):
    def decode(self, parts, context):
        parts["values"].zero_()
        return put(parts, parts["values"].float())


DECODING = {
    RaisesInDecode: "KeyError: 'scale'",
    RefusesItself: "a scale is missing",
    GivesBackAnotherShape: r"its values is torch.float32 of shape \[7\]; torch.float32 of shape \[1000\] was expected",
    GivesBackNothing: "it gave nothing; its layout has values",
    GivesBackAList: "AttributeError",
    DecodesInPlace: "it changed a tensor in place; clone it first",
}


@pytest.mark.parametrize("kind", DECODING, ids=lambda kind: kind.__name__)
def test_a_message_that_a_stage_decodes_wrongly_is_refused_and_the_stage_named(kind):
    codecs = Codecs.parse([Rule("x", Chain(kind()))])
    with pytest.raises(
        WireError, match=rf'^coded tensor "x": stage {__name__}:{kind.__name__} cannot decode: {DECODING[kind]}'
    ):
        codecs.decode(sent(codecs), "up")


# ---- what a stage may have --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Threshold(Stage):
    """Values above a threshold and their positions: how many is known to the sender alone."""

    place = "selection"
    loses = True
    above: float = 1.0

    def encode(self, parts, context):
        flat = parts["values"].reshape(-1)
        positions = (flat > self.above).nonzero().squeeze(1)
        return put(parts, flat[positions], positions=positions.to(torch.int32))

    def layout(self, before, count):
        return put(before, before["values"]._replace(shape=(count,)), positions=Form(torch.int32, (count,)))

    def decode(self, parts, context):
        whole = torch.zeros(context.form.numel, dtype=context.form.dtype)
        whole[parts["positions"].long()] = parts["values"]
        return put(parts, whole.view(context.form.shape))

    def counts(self, before):
        return True


def test_a_stage_may_keep_a_number_of_values_that_stands_in_the_message():
    codecs = Codecs.parse([Rule("x", Chain(Threshold(1.0), Int8()))])
    travelling = sent(codecs, X.view(10, 100))
    kept = int((X > 1).sum())
    assert json.loads(str(travelling.scalars[CODECS]))["tensors"] == [[0, [10, 100], kept]]
    assert len(travelling.tensors["x:values"]) == kept
    decoded = codecs.decode(travelling, "up").tensors["x"]
    assert int((decoded > 0).sum()) == kept
    header = travelling.scalars[CODECS].replace(f",{kept}]", ",1001]")
    with pytest.raises(WireError, match="says that it keeps 1,001 of 1,000 values"):
        codecs.decode(Message(travelling.tensors, {CODECS: header}), "up")


@dataclass(frozen=True)
class Difference(Stage):
    """The difference from the last values that it was given: a memory of the sender's alone."""

    place = "correction"
    remembers = ("last",)
    silent = True

    def encode(self, parts, context):
        return put(parts, parts["values"] - context.known.get("last", 0.0))

    def remember(self, given, received, context):
        return {"last": given["values"]}


def test_a_stage_may_remember_under_a_name_of_its_own():
    codecs = Codecs.parse([Rule("x", Chain(Difference(), Int8()), "up")])
    assert codecs.remembers
    values = X.clone()
    travelling, memory = codecs.encode(Message({"x": values}), "up", {})
    assert list(memory) == [f"{__name__}:Difference.last/x"]
    assert chains(travelling) == ["float32=int8"]
    values.zero_()
    assert torch.equal(memory[f"{__name__}:Difference.last/x"], X)  # a copy of its own
    again, _ = codecs.encode(Message({"x": X}), "up", memory)
    assert not again.tensors["x:values"].any()


# ---- in a run ---------------------------------------------------------------------------------------------------

BROKEN = """
from catchment.codecs.quantization import Float16

class Encode(Float16):
    name = "broken_of_user:Encode"

    def encode(self, parts, context):
        raise KeyError("scale")

class Decode(Float16):
    name = "broken_of_user:Decode"

    def decode(self, parts, context):
        raise KeyError("scale")
"""


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("stage", ["Encode", "Decode"])
def test_a_stage_that_breaks_ends_a_run_in_one_sentence_that_names_it(tmp_path, monkeypatch, stage, direction):
    (tmp_path / "broken_of_user.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    broken = experiment("fedavg", wire={"codecs": [f"{direction}:weights/*=broken_of_user:{stage}"]})
    with pytest.raises(
        CatchmentError, match=f"stage broken_of_user:{stage} cannot {stage.lower()}.*: KeyError: 'scale'$"
    ):
        catchment.run(broken)
    sys.modules.pop("broken_of_user")
