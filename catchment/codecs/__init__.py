"""Codecs: how named tensors of a message are made smaller on the wire, by the rules of an experiment."""

from catchment.codecs.chain import Chain
from catchment.codecs.codecs import Codecs, Memory
from catchment.codecs.header import CODECS
from catchment.codecs.rules import Direction, Rule, could_match, matches, parse_rule
from catchment.codecs.stage import CannotCarry, Context, Form, Layout, Parts, Stage, put

__all__ = [
    "CODECS",
    "CannotCarry",
    "Chain",
    "Codecs",
    "Context",
    "Direction",
    "Form",
    "Layout",
    "Memory",
    "Parts",
    "Rule",
    "Stage",
    "could_match",
    "matches",
    "parse_rule",
    "put",
]
