"""What a report says of trust: what devices sent, who lied, and which replies went wrong. Lists are bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catchment.report.cells import bytes_cell, run_column
from catchment.report.parts import Figures, Heading, Note, Part, Picture, Table
from catchment.report.showing import percent
from catchment.report.tables import Column
from catchment.runs.reading import RunFiles, labels
from catchment.runs.records import NEWS, TROUBLES

ROWS = 50  # at most this many events of a run, and flagged clients of all, are listed
NAMED = 20  # at most this many attackers are named
PROBE = "inversion-"  # what names of the probe's pictures begin with; a round follows


def leaves(runs: Sequence[RunFiles]) -> list[Part]:
    """What clients sent, field by field, and what it reveals; nothing before a run is finished."""
    sent = [(run, row) for run in runs for row in run.outcome.leaves]
    if not sent:
        return []
    fields = [run.outcome.bytes_by_field for run, _ in sent]
    sizes = [None if found is None else found.up.get(row.field) for found, (_, row) in zip(fields, sent)]
    columns = [
        *run_column(runs, [run for run, _ in sent]),
        Column("field", [row.field for _, row in sent], numeric=False),
        Column("kind", [row.kind for _, row in sent], numeric=False),
        Column("shape", [row.shape for _, row in sent], numeric=False),
        Column("when asked for", [row.when for _, row in sent], numeric=False),
        Column("sent in training", [bytes_cell(size) for size in sizes]),
        Column("what it shows", [row.shows for _, row in sent], numeric=False),
    ]
    note = "Shapes are those of the first client; bytes are of all clients, as they were on the wire."
    return [Table(columns), Note(note)]


def probe(runs: Sequence[RunFiles]) -> list[Part]:
    """What the probe rebuilt of private images, with pictures; nothing if it was not asked for."""
    found = [(run, record.round, record.probe) for run in runs for record in run.rounds if record.probe]
    attacks = [(*one, name, likeness) for one in found for name, likeness in one[2].attacks.items()]
    if not attacks:
        return []
    columns = [
        *run_column(runs, [run for run, *_ in attacks]),
        Column("round", [f"{number}" for _, number, *_ in attacks]),
        Column("attack", [f"{n} (best)" if n == probe.best else n for _, _, probe, n, _ in attacks], numeric=False),
        Column("correlation", [f"{likeness.correlation:.3f}" for *_, likeness in attacks]),
        Column("PSNR, dB", [f"{likeness.psnr:.1f}" for *_, likeness in attacks]),
        Column("SSIM", [f"{likeness.ssim:.3f}" for *_, likeness in attacks]),
        Column("identified %", [percent(likeness.identified) for *_, likeness in attacks]),
        Column("private images", [f"{probe.images} among {probe.private:,}" for _, _, probe, _, _ in attacks]),
    ]
    below = "private images above, rebuilt ones below; the most alike, and last the median"
    pictures = [
        Picture(image, name, f"{label}, round {name.removeprefix(PROBE)}: {below}")
        for label, run in zip(labels(runs), runs)
        for name, image in run.images.items()
        if name.startswith(PROBE)
    ]
    return [
        Note(
            "What an honest but curious server could rebuild of private images from the features of one client, with "
            "decoders that it trains on images of its own. The mean image uses no features."
        ),
        Note("Measured against the private images, which only a simulation has."),
        Table(columns),
        *([Figures(pictures)] if pictures else []),
    ]


def attacks(runs: Sequence[RunFiles]) -> list[Part]:
    """Who lied and how strongly, and whom the inspection flagged; nothing if there is neither."""
    attacked = [(run, run.attack) for run in runs if run.attack]
    parts: list[Part] = []
    if attacked:
        columns = [
            Column("attack", [attack.name for _, attack in attacked], numeric=False),
            Column("attackers", [_named(attack.attackers) for _, attack in attacked], numeric=False),
            Column("strength used", [_strengths(attack.used) for _, attack in attacked], numeric=False),
            Column("aggregation", [run.aggregation for run, _ in attacked], numeric=False),
        ]
        parts.append(Table([*run_column(runs, [run for run, _ in attacked]), *columns]))
    flags = [(run, client, found) for run in runs for client, found in run.flags.items()]
    if not flags:
        return parts
    shown = flags if len(flags) <= ROWS else sorted(flags, key=lambda flag: -len(flag[2]))[:ROWS]
    liars = [run.attack is not None and client in run.attack.attackers for run, client, _ in shown]
    columns = [
        Column("flagged client", [f"{client}" for _, client, _ in shown]),
        *([Column("attacker", ["yes" if liar else "no" for liar in liars], numeric=False)] if attacked else []),
        Column("rounds", [f"{len(found)}" for _, _, found in shown]),
        Column("first in", [f"{found[0][0]}" for _, _, found in shown]),
        Column("why", [found[0][1] for _, _, found in shown], numeric=False),
    ]
    parts.append(Table([*run_column(runs, [run for run, _, _ in shown]), *columns]))
    if len(flags) > len(shown):
        parts.append(Note(f"The {len(shown)} of {len(flags):,} that were flagged in most rounds."))
    return parts


def _named(clients: Sequence[int]) -> str:
    """`"0, 4"`; of many clients, the first ones and their number."""
    first = ", ".join(map(str, clients[:NAMED]))
    return first if len(clients) <= NAMED else f"{first}, … ({len(clients):,} in all)"


def _strengths(used: Sequence[Mapping[str, float]]) -> str:
    """`"z 1.5, z_formula 0.18"`, several where it changed from round to round."""
    return "; ".join(", ".join(f"{name} {number:.4g}" for name, number in numbers.items()) for numbers in used)


def events(runs: Sequence[RunFiles]) -> list[Part]:
    """Replies that went wrong, and who came and went."""
    parts: list[Part] = []
    for label, run in zip(labels(runs), runs):
        events = [(record.round, event) for record in run.rounds for event in record.events]
        events = [(number, event) for number, event in events if event.what in (*TROUBLES, *NEWS)]
        if not events:
            continue
        if len(runs) > 1:
            parts.append(Heading(label))
        shown = events[:ROWS]
        columns = [
            Column("round", [f"{number}" for number, _ in shown]),
            Column("what", [event.what for _, event in shown], numeric=False),
            Column("client", ["" if event.client is None else f"{event.client}" for _, event in shown]),
            Column("asked for", [event.handler for _, event in shown], numeric=False),
            Column("reason", [event.why for _, event in shown], numeric=False),
        ]
        parts.append(Table(columns))
        if len(events) > len(shown):
            parts.append(Note(f"The first {len(shown)} of {len(events):,}."))
    return parts or [Note("Every reply arrived as asked.")]
