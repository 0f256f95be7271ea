"""What the clock of a run measures: simulated devices have virtual time, real machines have real time."""

from __future__ import annotations

from collections.abc import Sequence

from catchment.runs.reading import RunFiles

NOTES = {
    "virtual time": "The time that the simulated devices would have needed; runs on ideal devices need none.",
    "real time": "The time since all clients were there, on real machines, without interruptions.",
}


def clock_name(runs: Sequence[RunFiles]) -> str:
    """`"virtual time"`, `"real time"`, or both where the runs differ."""
    return " or ".join(_kinds(runs))


def clock_note(runs: Sequence[RunFiles]) -> str:
    """What the times of a figure are."""
    return " ".join(NOTES[kind] for kind in _kinds(runs))


def _kinds(runs: Sequence[RunFiles]) -> list[str]:
    """The clocks of the runs that have one, which those on ideal devices have not."""
    found = {
        "real time" if run.plan.engine == "flower" else "virtual time"
        for run in runs
        if run.outcome.virtual_seconds or any(record.virtual_seconds for record in run.rounds)
    }
    return [kind for kind in NOTES if kind in found]
