"""The state of runs, read from their files: nothing is asked of the run, so that watching it cannot disturb it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchment.errors import CatchmentError, UserError
from catchment.exchange.request import TRAINING
from catchment.reading import read_json
from catchment.report.verdicts import NAMES, constant_answer, fall
from catchment.runs.directory import EXPERIMENT, LEDGER, RESULT, ROUNDS
from catchment.runs.journal import Lines, file_bytes
from catchment.runs.presence import read_presence, states_in, what_helps
from catchment.runs.reading import number_of, read_plan
from catchment.runs.records import LedgerRound, Result, Round

RECENT = 5  # rounds whose time says how long the others will take
TROUBLE = ("late", "lost", "failed", "refused", "flagged", "suspended", "declined", "left", "revoked", "missing")
SILENCE = 20.0  # seconds without a sign of life of the server, after which nobody knows who is there
EVENTS = 100  # the last ones, on the page of a run


def find_runs(place: Path) -> dict[str, Path]:
    """The runs of a directory by name: itself, or all below it."""
    if (place / EXPERIMENT).exists():
        return {place.resolve().name: place}
    found = sorted(path.parent for path in place.rglob(EXPERIMENT)) if place.is_dir() else []
    return {path.relative_to(place).as_posix(): path for path in found}


@dataclass(frozen=True)
class Status:
    """How far a run is."""

    name: str
    method: str
    planned: int
    clients: int
    headline: str  # the number that the experiment wants to be shown first
    rounds: list[Round]
    finished: bool
    fall: str  # from which round on a finished run fell, and what usually helps; "" if it did not
    changed: float  # when its last round ended, in seconds since 1970

    @staticmethod
    def read(directory: Path) -> Status:
        """The state of the run in a directory."""
        plan = read_plan(directory)
        rounds = list(Lines(directory / ROUNDS, Round, may_be_torn=True))
        last = directory / (ROUNDS if rounds else EXPERIMENT)
        result = directory / RESULT
        return Status(
            name=plan.name,
            method=plan.method.name,
            planned=plan.rounds,
            clients=plan.data.clients,
            headline="accuracy" if plan.evaluation is None else plan.evaluation.headline,
            rounds=rounds,
            finished=result.exists(),
            fall=fall(plan, read_json(Result, file_bytes(result), str(result))) if result.exists() else "",
            changed=last.stat().st_mtime,
        )

    @property
    def last(self) -> Round | None:
        """The last round that was evaluated."""
        return next((record for record in reversed(self.rounds) if record.accuracy is not None), None)

    @property
    def shown(self) -> str:
        """The headline, or accuracy where that was not measured."""
        measured = self.last is None or number_of(self.last, self.headline) is not None
        return self.headline if self.headline in NAMES and measured else "accuracy"

    @property
    def seconds_left(self) -> float | None:
        """By the time of the last rounds; None before the first."""
        recent = self.rounds[1:][-RECENT:] or self.rounds  # the first one has to wait for clients, and to warm up
        if not recent or self.finished:
            return 0.0 if self.finished else None
        return sum(record.seconds for record in recent) / len(recent) * (self.planned - len(self.rounds))

    def summary(self) -> dict[str, Any]:
        """One row of a list of runs."""
        last = self.last
        return {
            "name": self.name,
            "method": self.method,
            "done": len(self.rounds),
            "planned": self.planned,
            "finished": self.finished,
            "headline": NAMES[self.shown],
            "share": None if last is None else number_of(last, self.shown),
            "constant": None if last is None else constant_answer(last, self.shown),
            "accuracy": None if last is None else last.accuracy,
            "fall": self.fall,
            "up": sum(record.bytes.up for record in self.rounds),
            "down": sum(record.bytes.down for record in self.rounds),
            "seconds_left": self.seconds_left,
            "quiet": time.time() - self.changed,
        }


def overview(place: Path) -> dict[str, Any]:
    """All runs below a place; one that cannot be read says why."""
    rows = {}
    for name, directory in find_runs(place).items():
        try:
            rows[name] = Status.read(directory).summary()
        except CatchmentError as error:
            rows[name] = {"name": name, "error": str(error)}
    return {"runs": rows}


def details(directory: Path) -> dict[str, Any]:
    """All about one run: its rounds, its clients and what happened."""
    status = Status.read(directory)
    events = _events(status)
    presence = None if status.finished else read_presence(directory)
    return {
        **status.summary(),
        "helps": _helps(presence),
        "rounds": [
            {
                "round": record.round,
                "share": number_of(record, status.shown),
                "up": record.bytes.up,
                "down": record.bytes.down,
                "seconds": record.seconds,
            }
            for record in status.rounds
        ],
        "number_of_clients": status.clients,
        "clients": _clients(presence, events),
        "events": events[: -EVENTS - 1 : -1],
    }


def _events(status: Status) -> list[dict[str, Any]]:
    """What happened, oldest first; that a client attacks is known to a simulation alone."""
    return [
        {"round": record.round, "what": event.what, "client": event.client, "why": event.why}
        for record in status.rounds
        for event in record.events
        if event.what != "attacked"
    ]


def _helps(presence: dict[str, Any] | None) -> list[str]:
    """What keeps clients from taking part, and the commands that would help; nothing where all are on this machine."""
    if presence is None or time.time() - presence["written"] > SILENCE:
        return []
    return what_helps(states_in(presence), presence.get("digest", ""), presence.get("keys"))


def _clients(presence: dict[str, Any] | None, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who is connected, works or is away, and since when; and the last trouble of each, and since which round it lasts.

    The same trouble in neighbouring rounds lasts.
    """
    rows: dict[int, dict[str, Any]] = {}
    if presence is not None:
        now = time.time()
        silent = now - presence["written"] > SILENCE
        for client, doing in presence["clients"].items():
            state, since = ("unknown", presence["written"]) if silent else (doing["state"], doing["since"])
            rows[int(client)] = {"client": int(client), "state": state, "seconds": max(0.0, now - since)}
    for event in events:
        if event["client"] is None or event["what"] not in TROUBLE:
            continue
        row = rows.setdefault(event["client"], {"client": event["client"], "state": "", "seconds": None})
        before = row.get("trouble") or {"what": "", "round": 0}
        lasts = before["what"] == event["what"] and event["round"] - before["round"] <= 1
        row["trouble"] = {**event, "since": before["since"] if lasts else event["round"]}
    return [rows[client] for client in sorted(rows)]


def client_details(directory: Path, client: int) -> dict[str, Any]:
    """All about one client: its bytes of training in every round, and what happened to it."""
    status, whole = Status.read(directory), details(directory)
    if not 0 <= client < status.clients:
        raise UserError(f"there is no client {client}; the run has clients 0 to {status.clients - 1}")
    rounds = []
    for record in Lines(directory / LEDGER, LedgerRound, may_be_torn=True):
        sent = {"round": record.round, "up": 0, "down": 0}
        for entry in record.entries:
            if entry.purpose == TRAINING:
                sent[entry.direction] += entry.clients.count(client) * sum(entry.tensors.values())
        rounds.append(sent)
    row = next((row for row in whole["clients"] if row["client"] == client), {"client": client, "state": ""})
    return {
        "name": whole["name"],
        "done": whole["done"],
        **row,
        "rounds": rounds,
        "events": [event for event in _events(status) if event["client"] == client][: -EVENTS - 1 : -1],
    }


def one_run(place: Path, name: str) -> Path:
    """The directory of a run by its name in the overview."""
    runs = find_runs(place)
    if name not in runs:
        raise UserError(f'there is no run "{name}" below {place}')
    return runs[name]
