"""What a rule may say, and what is answered when it makes no sense."""

import pytest

from catchment.codecs import Chain, Codecs, Rule, parse_rule
from catchment.codecs.lossless import Sparse, Zstd
from catchment.codecs.quantization import BFloat16, Float16, Int4, Int8
from catchment.codecs.sparsification import Feedback, TopK, Update
from catchment.errors import ExperimentError


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("features=int8+zstd", Rule("features", Chain(Int8(1), Zstd(3)))),
        (
            "up:weights/*=update+feedback+topk(0.01)",
            Rule("weights/*", Chain(Update(), Feedback(), TopK(0.01)), "up"),
        ),
        ("down:logits=fp16", Rule("logits", Chain(Float16()), "down")),
        (
            "*=int4(0)+sparse+zstd(19)",
            Rule("*", Chain(Int4(0), Sparse(), Zstd(19))),
        ),
        ("a=b = bf16 + zstd", Rule("a=b", Chain(BFloat16(), Zstd()))),
        ("x=topk(1)", Rule("x", Chain(TopK(1.0)))),
    ],
)
def test_a_rule_is_direction_pattern_and_chain(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize("chain", ["int8+zstd", "int8(0)+zstd(9)", "update+feedback+topk(0.01)+int4", "update+fp16",
                                   "update+topk(0.03125,4)+golomb",
                                   "update+feedback+sign", "golomb"])  # fmt: skip
def test_a_chain_prints_as_it_was_written(chain):
    assert str(parse_rule(f"up:x={chain}").chain) == chain


REFUSED = {
    "x=topk(0.1)+sign": r"has sign after topk, whose values would all be one",
    "x=topk(0.1,a)": r"topk\(0.1,a\) needs the share to keep, .* a number of messages to warm up, as in topk\(0.01,4\)",
    "x=topk(0.1)+golomb+zstd": r"has zstd after golomb, which leaves it nothing to compress",
    "x=sparse+golomb": r"has both sparse and golomb, of which a chain has one",
    "features": r'codec rule "features" has no "="; write PATTERN=CHAIN',
    "=int8": r'codec rule "=int8" names no tensors',
    "up:=int8": r"names no tensors",
    "upp:x=int8": r'has "upp:" in front; did you mean "up"\?',
    "x=": r'unknown stage ""; known: bf16, feedback',
    "x=int9": r'codec rule "x=int9": unknown stage "int9"; did you mean "int8"\?',
    "x=zstd(": r'"zstd\(" is not a stage',
    "x=fp16(3)": r"fp16 has no options; write fp16 instead of fp16\(3\)",
    "x=int8(-1)": r"int8\(-1\) needs an axis that counts from 0, as in int8\(0\)",
    "x=int8(a)": r"int8\(a\) needs an axis",
    "x=zstd(0)": r"zstd\(0\) needs a level from 1 to 22",
    "x=zstd(23)": r"needs a level from 1 to 22",
    "x=topk": r"topk needs the share to keep, above 0 and at most 1, as in topk\(0.01\)",
    "x=topk(0)": r"topk\(0\) needs the share",
    "x=topk(1.5)": r"topk\(1.5\) needs the share",
    "x=topk(nan)": r"topk\(nan\) needs the share",
    "x=zstd+fp16": r"has fp16 after zstd; a chain goes: difference \(update\); correction \(feedback, momentum\)",
    "x=int8+topk(0.1)": r"has topk after int8; a chain goes",
    "x=sparse+int8": r"has int8 after sparse; a chain goes",
    "up:x=fp16+update": r"has update after fp16; a chain goes",
    "x=int8+int4": r"has both int8 and int4, of which a chain has one; a chain goes",
    "x=zstd+zstd": r"has zstd twice, of which a chain has one",
    "up:x=update+update+fp16": r"has update twice",
    "x=feedback": r"has feedback with no lossy stage after it",
    "x=feedback+zstd": r"has feedback with no lossy stage after it",
    "up:x=update": r"ends with update, which makes nothing smaller; put one of topk, smartidx, fp16, bf16, int8",
    "down:x=update+int8": r'needs the request .* answered, so it goes up only; write "up:x=update\+int8"$',
    "x=update+int8": r"goes up only",
    "down:x=feedback+int8": r'remembers earlier messages .*, so it goes up only; write "up:x=feedback\+int8"$',
    "x=topk(0.1,4)": r'remembers earlier messages .* and the server does not, so it goes up only',
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_with_the_reason(text):
    with pytest.raises(ExperimentError, match=REFUSED[text]):
        parse_rule(text)


def test_the_first_rule_that_fits_applies():
    codecs = Codecs.parse(["up:weights/head.*=fp16", "weights/*=int8(0)", "down:*=zstd"])
    assert str(codecs.chain("weights/head.0", "up")) == "fp16"
    assert str(codecs.chain("weights/head.0", "down")) == "int8(0)"
    assert str(codecs.chain("logits", "down")) == "zstd"
    assert codecs.chain("logits", "up") is None
    assert codecs.chain("Weights/x", "up") is None
    assert str(Codecs.parse(["weights=fp16"]).chain("weights/head.0", "up")) == "fp16"


def test_a_wire_knows_whether_clients_remember_something():
    assert not Codecs.parse(["up:x=update+int8", "down:y=fp16"]).remembers
    assert Codecs.parse(["up:x=feedback+topk(0.1)"]).remembers
    assert Codecs.parse(["up:x=topk(0.1,4)"]).remembers
