"""Codecs: how named tensors of a message are made smaller on the wire, by the rules of an experiment."""

from catchment.codecs.rules import Chain, Direction, Rule, Stage, parse_rule
from catchment.codecs.wire import CODECS, Memory, Wire

__all__ = ["CODECS", "Chain", "Direction", "Memory", "Rule", "Stage", "Wire", "parse_rule"]
