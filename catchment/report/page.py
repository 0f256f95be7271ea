"""The report: one HTML file that needs nothing else, of one run or of several compared."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.errors import UserError
from catchment.report.reading import NEWS, TROUBLES, RunFiles, labels
from catchment.report.showing import MISSING, human_bytes, human_seconds, percent, printable
from catchment.report.style import CSS
from catchment.report.tables import Column, summary_columns

if TYPE_CHECKING:
    from catchment.report.figures import Drawing

EVENTS = 50  # so many of a run are listed
PROBE = "inversion-"  # what names of the probe's pictures begin with; a round follows
SAID = "self-reported"  # by clients; the server did not measure it

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_report(directories: Sequence[str | Path], target: str | Path) -> Path:
    """Write the report of the runs in these directories; returns the file.

    A `target` that is a directory gets a `report.html`.
    """
    if not directories:
        raise UserError("a report needs at least one run directory; none was given")
    page = html_report([RunFiles.read(directory) for directory in directories])
    path = Path(target)
    if path.is_dir():
        path /= "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


def html_report(runs: Sequence[RunFiles]) -> str:
    """The HTML of a report."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    first = (_heading(title, runs), _what_ran(runs), _figures(runs), _images(runs), _communication(runs))
    sections = (
        *first,
        _leaves(runs),
        _probe(runs),
        _costs(runs),
        _data(runs),
        _attacks(runs),
        _events(runs),
        _experiments(runs),
    )
    body = "\n".join(section for section in sections if section)
    return PAGE.format(title=_text(title), css=CSS, body=body)


# ---- sections ---------------------------------------------------------------------------------------------------


def _heading(title: str, runs: Sequence[RunFiles]) -> str:
    if len(runs) > 1:
        return f"<h1>{_text(title)}</h1>"
    data = runs[0].experiment["data"]
    line = f"{runs[0].method} on {data['name']} with {_counted(data['clients'], 'client')}"
    return f'<h1>{_text(title)}</h1>\n<p class="quiet">{_text(line)}</p>\n{_badge(runs[0])}'


def _what_ran(runs: Sequence[RunFiles]) -> str:
    cards = _run_cards(runs) if len(runs) > 1 else _number_cards(runs[0])
    told = any(run.outcome.get("self_reported") for run in runs)
    note = _quiet("Self-reported numbers are what clients say of themselves; the server did not measure them.")
    summary = _table(summary_columns(runs)) + (note if told else "")
    return _section("What ran", cards, summary, _by_model(runs), _further(runs))


def _number_cards(run: RunFiles) -> str:
    """The headline numbers of one run."""
    outcome, sizes = run.outcome, run.outcome["bytes"]
    best = outcome["best"]
    accuracy = MISSING if outcome["accuracy"] is None else f"{percent(outcome['accuracy'])} %"
    notes = [f"best {percent(best['accuracy'])} % in round {best['round']}"] if best else []
    notes += [SAID] if run.self_reported("accuracy") else []
    cards = [
        _card("accuracy", accuracy, ", ".join(notes)),
        _card("rounds", f"{run.done:,}", f"of {run.planned:,}" if run.unfinished else ""),
        _card("bytes up", human_bytes(sizes["up"]), "clients to server"),
        _card("bytes down", human_bytes(sizes["down"]), "server to clients"),
        _card("bytes to evaluate", human_bytes(sizes["evaluation"]), "booked apart"),
        _card("wall time", human_seconds(outcome["seconds"])),
    ]
    if outcome["virtual_seconds"]:
        cards.append(_card("virtual time", human_seconds(outcome["virtual_seconds"]), "of simulated devices"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _run_cards(runs: Sequence[RunFiles]) -> str:
    """A card for each of several runs."""
    cards = []
    for label, run in zip(labels(runs), runs):
        outcome = run.outcome
        accuracy = MISSING if outcome["accuracy"] is None else f"{percent(outcome['accuracy'])} %"
        moved = human_bytes(outcome["bytes"]["up"] + outcome["bytes"]["down"])
        note = f"{moved} in {_counted(run.done, 'round')}"
        note += f", accuracy {SAID}" if run.self_reported("accuracy") else ""
        cards.append(_card(label, accuracy, note, warning=run.unfinished))
    return f'<div class="cards runs">{"".join(cards)}</div>'


def _further(runs: Sequence[RunFiles]) -> str:
    """What the summary has no column for."""
    measured = [{**_prefixed("server", run.outcome.get("server")), **(run.outcome.get("more") or {})} for run in runs]
    names = dict.fromkeys(name for numbers in measured for name in numbers if name != "server accuracy")
    best = [run.outcome["best"] for run in runs]
    said = [f" {SAID}" if run.self_reported("accuracy") else "" for run in runs]
    columns = [
        Column("best accuracy %", [percent(one and one["accuracy"]) + mark for one, mark in zip(best, said)]),
        Column("in round", [f"{one['round']}" if one else MISSING for one in best]),
        *(Column(name, [_number(numbers.get(name)) for numbers in measured]) for name in names),
    ]
    note = ""
    if any(run.outcome.get("fingerprint") for run in runs):
        prints = [run.outcome.get("fingerprint") or MISSING for run in runs]
        columns.append(Column("fingerprint", prints, numeric=False))
        note = _quiet("Runs that did exactly the same have the same fingerprint.")
    return _table([*_run_column(runs, runs), *columns]) + note


def _figures(runs: Sequence[RunFiles]) -> str:
    """Those of all runs, then, if there are several, those of each."""
    from catchment.report.figures import drawings  # who writes no reports needs no Matplotlib

    numbers = count(1)
    shared = drawings(runs)
    parts = [_grid(shared, numbers)]
    if len(runs) > 1:
        for label, run in zip(labels(runs), runs):
            if own := drawings([run]):
                parts.append(f"<details><summary>{_text(label)}</summary>{_grid(own, numbers)}</details>")
    return _section("Figures", *parts) if shared else _section("Figures", _quiet("No round is finished yet."))


def _communication(runs: Sequence[RunFiles]) -> str:
    """Bytes until an accuracy was reached, and the top accuracy."""
    tops = [max((point.accuracy for point in run.curve), default=None) for run in runs]
    steps = [step / 10 for step in range(1, 10) if any(run.bytes_to_reach(step / 10) is not None for run in runs)]
    if not steps:
        return ""
    columns = [
        *(Column(f"to {100 * step:.0f} %", [_bytes(run.bytes_to_reach(step)) for run in runs]) for step in steps[-5:]),
        Column("top accuracy %", [percent(top) for top in tops]),
    ]
    note = _quiet("Bytes of training, up and down, until the mean of the clients (or the one model) first got so far.")
    return _section("Communication", _table([*_run_column(runs, runs), *columns]), note)


def _images(runs: Sequence[RunFiles]) -> str:
    """The pictures that methods left, such as what a generator makes; no section if there are none."""
    shown = []
    for label, run in zip(labels(runs), runs):
        for name, image in run.images.items():
            if not name.startswith(PROBE):
                caption = f"{name}, after the last evaluation" if len(runs) == 1 else f"{label}: {name}"
                shown.append(_image(image, name, caption))
    return _section("Images", f'<div class="figures">{"".join(shown)}</div>') if shown else ""


def _by_model(runs: Sequence[RunFiles]) -> str:
    """Accuracy by the model of the clients, where they have several."""
    found = {id(run): run.outcome.get("models") or {} for run in runs}
    names = dict.fromkeys(name for models in found.values() for name in models)
    if not names:
        return ""
    having = [run for run in runs if found[id(run)]]
    columns = [
        Column(f"{name} %", [percent((found[id(run)].get(name) or {}).get("accuracy")) for run in having])
        for name in names
    ]
    said = f" Some are {SAID}." if any(run.self_reported("clients") for run in having) else ""
    note = _quiet(f"Accuracy by the model of the clients: the mean over those that have it.{said}")
    return _table([*_run_column(runs, having), *columns]) + note


def _leaves(runs: Sequence[RunFiles]) -> str:
    """What clients sent, field by field, and what it shows; nothing before a run is finished."""
    sent = [(run, row) for run in runs for row in run.outcome.get("leaves") or ()]
    if not sent:
        return ""
    sizes = [(run.outcome.get("bytes_by_field") or {"up": {}})["up"].get(row["field"]) for run, row in sent]
    columns = [
        *_run_column(runs, [run for run, _ in sent]),
        *(
            Column(title, [row[key] for _, row in sent], numeric=False)
            for key, title in (("field", "field"), ("kind", "kind"), ("shape", "shape"), ("when", "when asked for"))
        ),
        Column("sent in training", [_bytes(size) for size in sizes]),
        Column("what it shows", [row["shows"] for _, row in sent], numeric=False),
    ]
    note = _quiet("Shapes are those of the first client; bytes are of all clients, as they were on the wire.")
    return _section("What left the devices", _table(columns), note)


def _probe(runs: Sequence[RunFiles]) -> str:
    """What the probe rebuilt of private images, with pictures; nothing if it was not asked for."""
    found = [(run, record["round"], record["probe"]) for run in runs for record in run.rounds if record.get("probe")]
    if not found:
        return ""
    attacks = [(*one, name, likeness) for *one, probe in found for name, likeness in probe["attacks"].items()]
    best = [probe["best"] == name for *_, probe in found for name in probe["attacks"]]
    among = [f"{probe['images']} among {probe['private']:,}" for *_, probe in found for _ in probe["attacks"]]
    columns = [
        *_run_column(runs, [run for run, *_ in attacks]),
        Column("round", [f"{number}" for _, number, _, _ in attacks]),
        Column("attack", [f"{name}{' (best)' * top}" for (_, _, name, _), top in zip(attacks, best)], numeric=False),
        *(
            Column(title, [f"{likeness[key]:.{digits}f}" for *_, likeness in attacks])
            for key, title, digits in (("correlation", "correlation", 3), ("psnr", "PSNR, dB", 1), ("ssim", "SSIM", 3))
        ),
        Column("identified %", [percent(likeness["identified"]) for *_, likeness in attacks]),
        Column("private images", among),
    ]
    notes = (
        "What a server that keeps to the protocol could rebuild of private images from the features of one client, "
        "with decoders that it trains on images of its own. The mean image knows nothing of the features.",
        "Measured with the private images at hand, as only a simulation can.",
    )
    pictures = [
        _image(image, name, f"{label}, round {name.removeprefix(PROBE)}: private images above, rebuilt ones below; "
               "the most alike, and last the median")
        for label, run in zip(labels(runs), runs)
        for name, image in run.images.items()
        if name.startswith(PROBE)
    ]  # fmt: skip
    shown = f'<div class="figures">{"".join(pictures)}</div>' if pictures else ""
    return _section("What a curious server could see", *map(_quiet, notes), _table(columns), shown)


def _costs(runs: Sequence[RunFiles]) -> str:
    """Parameters and work of the models, peak memory of the handlers."""
    models: list[tuple[RunFiles, str, str, dict[str, int]]] = []
    peaks: list[tuple[RunFiles, str, int | None]] = []
    for run in runs:
        costs = run.outcome.get("costs") or {}
        for side, place in (("clients", "client"), ("server", "server")):
            models += [(run, name, place, numbers) for name, numbers in (costs.get(side) or {}).items()]
        peaks += [(run, name, peak) for name, peak in (costs.get("peak_memory") or {}).items()]
    parts = []
    if models:
        parts.append(
            _table(
                [
                    *_run_column(runs, [run for run, *_ in models]),
                    Column("model", [name for _, name, _, _ in models], numeric=False),
                    Column("side", [place for _, _, place, _ in models], numeric=False),
                    Column("parameters", [f"{numbers['parameters']:,}" for *_, numbers in models]),
                    Column("MACs per sample, forward", [f"{numbers['macs_per_sample']:,}" for *_, numbers in models]),
                ]
            )
        )
    if peaks:
        parts.append(
            _table(
                [
                    *_run_column(runs, [run for run, *_ in peaks]),
                    Column("work of a client", [name for _, name, _ in peaks], numeric=False),
                    Column(
                        "peak memory",
                        [human_bytes(peak) if isinstance(peak, int) else "not measured" for *_, peak in peaks],
                    ),
                ]
            )
        )
    return _section("Costs", *parts or [_quiet("Known when the run is finished.")])


def _data(runs: Sequence[RunFiles]) -> str:
    """How the samples lie on the clients."""
    settings = [run.experiment["data"] for run in runs]
    found: list[dict[str, Any]] = [run.outcome.get("data") or {} for run in runs]
    names = ("train", "smallest_client", "largest_client", "test", "public")
    sizes = [Column(name.replace("_", " "), [_number(numbers.get(name)) for numbers in found]) for name in names]
    columns = [
        *_run_column(runs, runs),
        Column("data", [str(setting["name"]) for setting in settings], numeric=False),
        Column("partition", [_partition(setting.get("partition")) for setting in settings], numeric=False),
        Column("clients", [f"{setting['clients']:,}" for setting in settings]),
        *(sizes if any(found) else []),
    ]
    return _section("Data", _table(columns), _quiet("Sizes are numbers of samples.") if any(found) else "")


def _attacks(runs: Sequence[RunFiles]) -> str:
    """Who lied and how strongly, and whom the inspection flagged; nothing if there is neither."""
    attacked = [run for run in runs if run.attack]
    flags = [(run, client, found) for run in runs for client, found in run.flags.items()]
    parts = []
    if attacked:
        columns = [
            Column("attack", [run.attack["name"] for run in attacked], numeric=False),
            Column("attackers", [", ".join(map(str, run.attack["attackers"])) for run in attacked], numeric=False),
            Column("strength used", [_strengths(run.attack["used"]) for run in attacked], numeric=False),
            Column("aggregation", [run.aggregation for run in attacked], numeric=False),
        ]
        parts.append(_table([*_run_column(runs, attacked), *columns]))
    if flags:
        liars = [client in run.attack.get("attackers", ()) for run, client, _ in flags]
        columns = [
            Column("flagged client", [f"{client}" for _, client, _ in flags]),
            *([Column("attacker", ["yes" if liar else "no" for liar in liars], numeric=False)] if attacked else []),
            Column("rounds", [f"{len(found)}" for _, _, found in flags]),
            Column("first in", [f"{found[0][0]}" for _, _, found in flags]),
            Column("why", [found[0][1] for _, _, found in flags], numeric=False),
        ]
        parts.append(_table([*_run_column(runs, [run for run, _, _ in flags]), *columns]))
    return _section("Attacks and flags", *parts) if parts else ""


def _strengths(used: Sequence[dict[str, float]]) -> str:
    """`"z 1.5, z_formula 0.18"`, several where it changed from round to round."""
    return "; ".join(", ".join(f"{name} {number:.4g}" for name, number in numbers.items()) for numbers in used)


def _events(runs: Sequence[RunFiles]) -> str:
    """What did not arrive as asked, and who came and went."""
    parts = []
    for label, run in zip(labels(runs), runs):
        events = [(record["round"], event) for record in run.rounds for event in record["events"]]
        events = [(number, event) for number, event in events if event["what"] in (*TROUBLES, *NEWS)]
        if not events:
            continue
        if len(runs) > 1:
            parts.append(f"<h3>{_text(label)}</h3>")
        shown = events[:EVENTS]
        parts.append(
            _table(
                [
                    Column("round", [f"{number}" for number, _ in shown]),
                    Column("what", [event["what"] for _, event in shown], numeric=False),
                    Column("client", ["" if event["client"] is None else f"{event['client']}" for _, event in shown]),
                    Column("asked for", [event["handler"] for _, event in shown], numeric=False),
                    Column("reason", [event["why"] for _, event in shown], numeric=False),
                ]
            )
        )
        if len(events) > len(shown):
            parts.append(_quiet(f"The first {len(shown)} of {len(events):,}."))
    return _section("Events", *parts or [_quiet("Every reply arrived as asked.")])


def _experiments(runs: Sequence[RunFiles]) -> str:
    """The files that give the runs again."""
    parts = []
    for label, run in zip(labels(runs), runs):
        toml = "\n".join(map(printable, run.toml.splitlines()))
        parts.append(f"<details><summary>{_text(label)}</summary><pre>{escape(toml)}</pre></details>")
    return _section("Experiment", *parts)


# ---- parts ------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    """Any text, safe in HTML."""
    return escape(printable(text))


def _section(title: str, *parts: str) -> str:
    return "\n".join([f"<section>\n<h2>{title}</h2>", *(part for part in parts if part), "</section>"])


def _bytes(size: int | None) -> str:
    return MISSING if size is None else human_bytes(size)


def _quiet(text: str) -> str:
    return f'<p class="quiet">{_text(text)}</p>'


def _badge(run: RunFiles) -> str:
    return f'<p class="unfinished">{_text(run.unfinished)}</p>' if run.unfinished else ""


def _card(name: str, value: str, note: str = "", warning: str = "") -> str:
    below = f'<dd class="note">{_text(note)}</dd>' if note else ""
    below += f'<dd class="unfinished">{_text(warning)}</dd>' if warning else ""
    return f'<dl class="card"><dt>{_text(name)}</dt><dd>{_text(value)}</dd>{below}</dl>'


def _image(image: bytes, name: str, caption: str) -> str:
    source = f"data:image/png;base64,{b64encode(image).decode()}"
    return f'<figure><img src="{source}" alt="{_text(name)}" /><figcaption>{_text(caption)}</figcaption></figure>'


def _table(columns: Sequence[Column]) -> str:
    kinds = ["number" if column.numeric else "text" for column in columns]
    head = "".join(f'<th class="{kind}">{_text(column.title)}</th>' for kind, column in zip(kinds, columns))
    rows = [
        "".join(f'<td class="{kind}">{_text(cell)}</td>' for kind, cell in zip(kinds, cells))
        for cells in zip(*(column.cells for column in columns))
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _run_column(runs: Sequence[RunFiles], of: Sequence[RunFiles]) -> list[Column]:
    """The run of each row, where there is more than one."""
    if len(runs) == 1:
        return []
    names = {id(run): label for run, label in zip(runs, labels(runs))}
    return [Column("run", [names[id(run)] for run in of], numeric=False)]


def _grid(shown: Sequence[Drawing], numbers: Iterator[int]) -> str:
    cells = [
        f"<figure>{drawing.svg(f'figure{number}')}<figcaption>{_text(drawing.note)}</figcaption></figure>"
        for drawing, number in zip(shown, numbers)
    ]
    return f'<div class="figures">{"".join(cells)}</div>'


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _number(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else MISSING


def _prefixed(word: str, numbers: dict[str, float] | None) -> dict[str, float]:
    return {f"{word} {name}": number for name, number in (numbers or {}).items()}


def _partition(table: Any) -> str:
    """`"dirichlet, alpha 0.5"`."""
    if not isinstance(table, dict):
        return MISSING
    return ", ".join(str(value) if key == "name" else f"{key} {value}" for key, value in table.items())
