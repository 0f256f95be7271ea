"""A policy in plain words, and what the device has sent so far."""

from __future__ import annotations

import math
from collections import Counter

from catchment.device.disk import approved
from catchment.device.policy import KINDS, Policy
from catchment.device.sent import NAME, REFUSED, read_log
from catchment.report import human_bytes

REFUSALS = 5  # that are shown, the last ones


def described(policy: Policy) -> str:
    """What a device may send, and what it has sent."""
    allow, limits = policy.allow, policy.limits
    kept = [kind for kind in KINDS if kind not in allow.leaves]
    runs = dict.fromkeys([*allow.experiments, *approved(policy.state)])
    trust = "not encrypted" if policy.root_certificate is None else f"certified by {policy.root_certificate}"
    signed = "signed by nobody" if policy.federation is None else f"signed by {policy.federation}"
    lines = [
        f"Client {policy.client} of {policy.server}, {trust}; runs must be {signed}.",
        f"Data are read from {policy.data or 'nowhere'}, code from {policy.modules or 'nowhere'}.",
        "",
        f"May be sent:      {', '.join(allow.leaves) or 'nothing'}",
        f"Is never sent:    {', '.join(kept) or 'everything may be sent'}",
        f"Methods:          {', '.join(allow.methods) or 'none'}",
        f"Approved runs:    {', '.join(runs) or 'none'}",
    ]
    if allow.trusted:
        lines.append("The server is trusted: paths and modules of its experiment are used as they are.")
    lines += [
        "",
        f"Per run:          at most {_bytes(limits.bytes_up_per_run)} up, {_number(limits.seconds_per_run)} s, "
        f"{_number(limits.rounds)} rounds of {_number(limits.requests_per_round)} requests",
        f"Per request:      at most {_bytes(limits.bytes_down_per_message)} down, "
        f"{_bytes(limits.bytes_up_per_message)} up, {_number(limits.seconds_per_request)} s",
        f"This machine:     at most {_bytes(limits.bytes_of_memory)} of memory, {_bytes(limits.bytes_of_disk)} of "
        f"disk, {_number(limits.threads)} threads, models of {_number(limits.parameters)} parameters, "
        f"{_number(limits.runs_kept)} runs kept",
        f"With fewer than {_number(limits.least_samples)} samples of its own the device does not take part.",
        "",
        *_history(policy),
    ]
    return "\n".join(lines)


def _history(policy: Policy) -> list[str]:
    sent: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    refused: list[str] = []
    for entry in (*read_log(policy.state), *read_log(policy.state, REFUSED)):
        if entry["what"] == "sent":
            sent[entry["federation"]] += entry["bytes"]
            answers[entry["federation"]] += 1
        else:
            refused.append(f"  {entry['time']} {entry['asked']}: {entry['why']}")
    lines = [f"Sent so far ({policy.state / NAME}):" if sent else "Nothing has been sent so far."]
    lines += [f"  run {run}: {human_bytes(size)} in {answers[run]} answers" for run, size in sent.items()]
    if refused:
        lines += [f"Refusals so far: {len(refused)}; the last:", *refused[-REFUSALS:]]
    return lines


def _bytes(limit: float) -> str:
    return "any number of bytes" if math.isinf(limit) else human_bytes(limit)


def _number(limit: float) -> str:
    return "any number of" if math.isinf(limit) else f"{limit:,.0f}"
