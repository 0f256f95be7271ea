"""The sections of a report, about one run or several compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from catchment.report import gains, quality, trust
from catchment.report.cells import bytes_cell, counted, number_cell, run_column
from catchment.report.clock import clock_name
from catchment.report.parts import (
    Alert,
    Card,
    Cards,
    Figures,
    File,
    Folded,
    Graph,
    Note,
    Part,
    Picture,
    Section,
    Table,
)
from catchment.report.showing import MISSING, human_bytes, human_seconds, percent, shortened
from catchment.report.tables import Column, summary_columns
from catchment.report.verdicts import NAMES, shared_headline
from catchment.runs.reading import RunFiles, labels
from catchment.runs.records import LOWER_IS_BETTER, ModelCosts, Spent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catchment.report.drawing import Drawing

CAPTIONS = {"found": "what is true above, what was found below"}  # of pictures, by the names of their files
SELF_REPORTED = "self-reported"  # by clients; the server did not measure it


def opening(runs: Sequence[RunFiles]) -> list[Part]:
    """What stands below the title."""
    if len(runs) > 1:
        return []
    run = runs[0]
    line = Note(f"{run.method} on {run.plan.data.name} with {counted(run.plan.data.clients, 'client')}")
    return [line, Alert(run.unfinished)] if run.unfinished else [line]


def sections(runs: Sequence[RunFiles]) -> list[Section]:
    """All sections that have something to say."""
    found = [
        Section("What ran", _what_ran(runs)),
        Section("Class by class", [*quality.numbers(runs), *_confusion(runs)]),
        Section("What clients gain", _gains(runs)),
        Section("Figures", _figures(runs)),
        Section("Images", _images(runs)),
        Section("Communication", _communication(runs)),
        Section("What devices sent", trust.leaves(runs)),
        Section("What a curious server could see", trust.probe(runs)),
        Section("Costs", _costs(runs)),
        Section("Data", _data(runs)),
        Section("Attacks and flags", trust.attacks(runs)),
        Section("Events", trust.events(runs)),
        Section("Experiment", _experiments(runs)),
    ]
    return [section for section in found if section.parts]


# ---- what ran ---------------------------------------------------------------------------------------------------


def _what_ran(runs: Sequence[RunFiles]) -> list[Part]:
    cards = _run_cards(runs) if len(runs) > 1 else _number_cards(runs[0])
    parts: list[Part] = [cards, Table(summary_columns(runs)), *quality.alerts(runs)]
    if any(run.outcome.self_reported for run in runs):
        parts.append(Note("Self-reported numbers were measured by the clients; the server could not check them."))
    return [*parts, *_by_model(runs), *_further(runs)]


def _number_cards(run: RunFiles) -> Cards:
    """The headline numbers of one run."""
    outcome, headline = run.outcome, shared_headline([run])
    cards = [
        _share_card(run, headline),
        *([] if headline == "accuracy" else [_share_card(run, "accuracy")]),
        Card("rounds", f"{run.done:,}", f"of {run.planned:,}" if run.unfinished else ""),
        Card("bytes up", human_bytes(outcome.bytes.up), "clients to server"),
        Card("bytes down", human_bytes(outcome.bytes.down), "server to clients"),
        Card("bytes to evaluate", human_bytes(outcome.bytes.evaluation), "not counted above"),
        Card("wall time", human_seconds(outcome.seconds), _where(outcome.spent)),
    ]
    if outcome.virtual_seconds:
        where = "on real machines" if run.plan.engine == "flower" else "of simulated devices"
        cards.append(Card(clock_name([run]), human_seconds(outcome.virtual_seconds), where))
    return Cards(cards)


def _where(spent: Spent) -> str:
    """Where the time went, largest first; nothing below one percent."""
    seconds = asdict(spent)
    total = sum(seconds.values())
    shares = sorted(((value / total, name) for name, value in seconds.items()), reverse=True) if total else []
    return ", ".join(f"{name} {100 * share:.0f} %" for share, name in shares if share >= 0.01)


def _share_card(run: RunFiles, name: str) -> Card:
    """The headline or the accuracy, and the best that it ever was."""
    value = run.number(name)
    known = [(share, record.round) for record in run.evaluated if (share := run.number(name, record)) is not None]
    best = (min if name in LOWER_IS_BETTER else max)(known, key=lambda found: found[0], default=None)
    notes = [f"best {percent(best[0])} % in round {best[1]}"] if best else []
    notes += [SELF_REPORTED] if run.self_reported("accuracy") else []
    return Card(NAMES[name], MISSING if value is None else f"{percent(value)} %", ", ".join(notes))


def _run_cards(runs: Sequence[RunFiles]) -> Cards:
    """A card for each of several runs."""
    cards, headline = [], shared_headline(runs)
    for label, run in zip(labels(runs), runs):
        outcome, value = run.outcome, run.number(headline)
        share = MISSING if value is None else f"{percent(value)} %"
        note = f"{human_bytes(outcome.bytes.up + outcome.bytes.down)} in {counted(run.done, 'round')}"
        said = f" {SELF_REPORTED}" if run.self_reported("accuracy") else ""
        note += f", {NAMES[headline]}{said}" if said or headline != "accuracy" else ""
        cards.append(Card(label, share, note, warning=run.unfinished))
    return Cards(cards, wide=True)


def _by_model(runs: Sequence[RunFiles]) -> list[Part]:
    """Accuracy by the model of the clients, where they have several."""
    having = [(run, run.outcome.models) for run in runs if run.outcome.models]
    names = dict.fromkeys(name for _, models in having for name in models)
    if not names:
        return []
    columns = [
        Column(f"{name} %", [percent(models[name].accuracy if name in models else None) for _, models in having])
        for name in names
    ]
    said = f" Some are {SELF_REPORTED}." if any(run.self_reported("clients") for run, _ in having) else ""
    note = f"Accuracy by the model of the clients: the mean over those that have it.{said}"
    return [Table([*run_column(runs, [run for run, _ in having]), *columns]), Note(note)]


def _further(runs: Sequence[RunFiles]) -> list[Part]:
    """What the summary has no column for."""
    measured = [{**_server_numbers(run), **run.outcome.more} for run in runs]
    names = dict.fromkeys(name for numbers in measured for name in numbers)
    best = [run.outcome.best for run in runs]
    said = [f" {SELF_REPORTED}" if run.self_reported("accuracy") else "" for run in runs]
    columns = [
        Column("best accuracy %", [percent(one.accuracy if one else None) + mark for one, mark in zip(best, said)]),
        Column("in round", [f"{one.round}" if one else MISSING for one in best]),
        *(Column(name.replace("_", " "), [number_cell(numbers.get(name)) for numbers in measured]) for name in names),
    ]
    if not any(run.outcome.fingerprint for run in runs):
        return [Table([*run_column(runs, runs), *columns])]
    prints = Column("fingerprint", [run.outcome.fingerprint or MISSING for run in runs], numeric=False)
    note = Note("Runs that did exactly the same have the same fingerprint.")
    return [Table([*run_column(runs, runs), *columns, prints]), note]


def _server_numbers(run: RunFiles) -> dict[str, Any]:
    """What was measured of the server's model beside its accuracy."""
    server = run.outcome.server
    return {} if server is None else {f"server {name}": number for name, number in server.others.items()}


# ---- how good the models are ------------------------------------------------------------------------------------


def _confusion(runs: Sequence[RunFiles]) -> list[Part]:
    """The confusion matrix of each run that kept one."""
    from catchment.report.confusion import drawing  # so that only reports need Matplotlib

    found = [
        (label, drawing(quality.class_names(run), run.outcome.confusion, label if len(runs) > 1 else ""))
        for label, run in zip(labels(runs), runs)
        if run.outcome.confusion
    ]
    return [Figures([Graph(one.svg(f"confusion{n}"), one.note) for n, (_, one) in enumerate(found)])] if found else []


def _gains(runs: Sequence[RunFiles]) -> list[Part]:
    """What clients gain over training alone, where a run of standalone with the same data is beside."""
    alone = {_deal(run): run.outcome.by_client for run in runs if run.method == gains.ALONE}
    found = []
    for label, run in zip(labels(runs), runs):
        before, accuracy = alone.get(_deal(run)), run.number("accuracy")
        if run.method != gains.ALONE and before is not None and accuracy is not None:
            own = run.outcome.by_client or gains.everybody(before, accuracy)
            found += [one] if (one := gains.gains(label, own, before)) else []
    if not found:
        return []
    figure = gains.drawing(found)
    return [Table(gains.columns(found)), Note(gains.NOTE), Figures([Graph(figure.svg("gains"), figure.note)])]


def _deal(run: RunFiles) -> str:
    """Equal for runs that deal the same data alike."""
    return f"{run.plan.seed} {run.plan.data}"


# ---- figures and pictures ---------------------------------------------------------------------------------------


def _figures(runs: Sequence[RunFiles]) -> list[Part]:
    """Those of all runs, then, if there are several, those of each."""
    from catchment.report.figures import drawings  # so that only reports need Matplotlib

    shared = drawings(runs)
    if not shared:
        return [Note("No round is finished yet.")]
    numbers = count(1)
    parts: list[Part] = [_graphs(shared, numbers)]
    if len(runs) > 1:
        for label, run in zip(labels(runs), runs):
            if own := drawings([run]):
                parts.append(Folded(label, _graphs(own, numbers)))
    return parts


def _graphs(shown: Sequence[Drawing], numbers: Iterator[int]) -> Figures:
    return Figures([Graph(drawing.svg(f"figure{next(numbers)}"), drawing.note) for drawing in shown])


def _images(runs: Sequence[RunFiles]) -> list[Part]:
    """The pictures that methods left, such as what a generator makes."""
    shown = []
    for label, run in zip(labels(runs), runs):
        for name, image in run.images.items():
            if not name.startswith(trust.PROBE):
                words = CAPTIONS.get(name, name)
                caption = f"{words}, after the last evaluation" if len(runs) == 1 else f"{label}: {words}"
                shown.append(Picture(image, name, caption))
    return [Figures(shown)] if shown else []


# ---- bytes ------------------------------------------------------------------------------------------


def _communication(runs: Sequence[RunFiles]) -> list[Part]:
    """Bytes until an accuracy was reached, and the top accuracy."""
    tops = [max((point.accuracy for point in run.curve), default=None) for run in runs]
    steps = [step / 10 for step in range(1, 10) if any(run.bytes_to_reach(step / 10) is not None for run in runs)]
    if not steps:
        return []
    columns = [
        *(
            Column(f"to {100 * step:.0f} %", [bytes_cell(run.bytes_to_reach(step)) for run in runs])
            for step in steps[-5:]
        ),
        Column("top accuracy %", [percent(top) for top in tops]),
    ]
    note = "Bytes of training, up and down, until the mean of the clients (or the one model) first reached it."
    return [Table([*run_column(runs, runs), *columns]), Note(note)]


# ---- costs and data ---------------------------------------------------------------------------------------------


def _costs(runs: Sequence[RunFiles]) -> list[Part]:
    """Parameters and work of the models, peak memory of the handlers."""
    models: list[tuple[RunFiles, str, str, ModelCosts]] = []
    peaks: list[tuple[RunFiles, str, int | None]] = []
    for run in runs:
        if (costs := run.outcome.costs) is not None:
            models += [(run, name, "client", numbers) for name, numbers in costs.clients.items()]
            models += [(run, name, "server", numbers) for name, numbers in (costs.server or {}).items()]
            peaks += [(run, name, peak) for name, peak in costs.peak_memory.items()]
    parts: list[Part] = []
    if models:
        columns = [
            *run_column(runs, [run for run, *_ in models]),
            Column("model", [name for _, name, _, _ in models], numeric=False),
            Column("side", [side for _, _, side, _ in models], numeric=False),
            Column("parameters", [f"{numbers.parameters:,}" for *_, numbers in models]),
            Column("MACs per sample, forward", [f"{numbers.macs_per_sample:,}" for *_, numbers in models]),
        ]
        parts.append(Table(columns))
    if peaks:
        sizes = ["not measured" if peak is None else human_bytes(peak) for *_, peak in peaks]
        columns = [
            *run_column(runs, [run for run, *_ in peaks]),
            Column("work of a client", [name for _, name, _ in peaks], numeric=False),
            Column("peak memory", sizes),
        ]
        parts.append(Table(columns))
    return parts or [Note("Known when the run is finished.")]


def _data(runs: Sequence[RunFiles]) -> list[Part]:
    """How the samples are distributed over the clients."""
    settings = [run.plan.data for run in runs]
    found = [run.outcome.data for run in runs]
    names = ("train", "smallest_client", "largest_client", "test", "public")
    sizes = [Column(name.replace("_", " "), [number_cell(getattr(one, name, None)) for one in found]) for name in names]
    columns = [
        *run_column(runs, runs),
        Column("data", [setting.name for setting in settings], numeric=False),
        Column("partition", [_partition(setting.partition) for setting in settings], numeric=False),
        Column("clients", [f"{setting.clients:,}" for setting in settings]),
    ]
    return [Table([*columns, *sizes]), Note("Sizes are numbers of samples.")] if any(found) else [Table(columns)]


def _partition(table: Mapping[str, Any] | None) -> str:
    """`"dirichlet, alpha 0.5"`."""
    if table is None:
        return MISSING
    options = [f"{key} {shortened(str(value), 60)}" for key, value in table.items() if key != "name"]
    return ", ".join([str(table.get("name", MISSING)), *options])


def _experiments(runs: Sequence[RunFiles]) -> list[Part]:
    """The experiment files, which reproduce the runs."""
    return [File(label, run.toml.strip()) for label, run in zip(labels(runs), runs)]
