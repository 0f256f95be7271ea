"""The card of an exported model in Markdown: what it is, what it was trained on, what it reaches and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catchment.export import Written
from catchment.tasks import Score

_TO_FILL_IN = "To be filled in by whoever publishes the model"


def model_card(
    about: Mapping[str, Any], written: Written, score: Score | None, result: Mapping[str, Any] | None
) -> str:
    """The card; `score` is what this very model reaches on the test set, `result` is that of the run if finished."""
    return "\n".join(
        [
            f"# {written.path.name}",
            "",
            f"{_whose(about)}, trained by {about['method']} in the experiment {about['experiment']}, as it was after "
            f"round {about['round']}.",
            "",
            *_section("Use", _use(about, written)),
            *_section("Data", _data(about, result)),
            *_section("Numbers", _numbers(about, score)),
            *_section("Costs", _costs(written, result)),
            *_section(
                "Limits", [f"{_TO_FILL_IN}: for whom and for what it was tested, and for what it must not be used."]
            ),
            *_section("Licence", [f"{_TO_FILL_IN}: of the model, and of the data if it asks for that."]),
        ]
    )


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _whose(about: Mapping[str, Any]) -> str:
    client = about.get("client")
    name = f" ({about['model']})" if "model" in about else ""
    return f"The global model or the server's{name}" if client is None else f"The model of client {client}{name}"


def _use(about: Mapping[str, Any], written: Written) -> list[str]:
    channels, height, width = about["shape"]
    takes = f"float32 images [N, {channels}, {height}, {width}]"
    if about["input"] == "pixels":
        lines = [f"- Takes {takes} of pixels from 0 to {about['scale']:g}; it normalises them itself."]
    elif about["input"] == "features":
        return ["- The server's half: it takes features that a client's extractor makes of images, and gives logits."]
    elif about["input"] == "floats":
        lines = [f"- Takes {takes}, as the data set has them."]
    else:
        mean, std = list(about["mean"]), list(about["std"])
        lines = [f"- Takes {takes}, normalised: (pixel / {about['scale']:g} - mean) / std, mean {mean}, std {std}."]
    if about["task"] == "classification":
        lines.append(f"- Gives logits [N, {len(about['classes'])}] of the classes {', '.join(about['classes'])}.")
    if written.images:
        lines.append(f"- Compared with PyTorch on {written.images} images: differs by at most {written.error:.1e}.")
    return [*lines, f"- `catchment predict {written.path.name} IMAGE...`"]


def _data(about: Mapping[str, Any], result: Mapping[str, Any] | None) -> list[str]:
    data = (result or {}).get("data") or {}
    lines = [f"- {about['data']}, partition {about['partition']}, {about['clients']} clients"]
    sizes = {"train": "training samples", "test": "test samples", "public": "public samples"}
    return lines + [f"- {data[key]:,} {name}" for key, name in sizes.items() if data.get(key)]


def _numbers(about: Mapping[str, Any], score: Score | None) -> list[str]:
    if about["input"] == "features":
        return ["A half is measured with the extractors of clients: see the report of the run."]
    if score is None:
        return ["There were no test samples to measure this model with."]
    found = {"accuracy": score.accuracy, **score.quality.numbers(), **score.more}
    rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in found.items()]
    lines = [f"This model on {score.samples:,} test samples:", "", "| | |", "|---|---:|", *rows]
    majority = score.quality.majority
    if majority is not None and score.accuracy <= majority:
        lines += ["", "**It does not beat always answering the most frequent class.**"]
    return lines


def _costs(written: Written, result: Mapping[str, Any] | None) -> list[str]:
    lines = [f"- {written.parameters:,} parameters; the file has {written.path.stat().st_size:,} bytes"]
    if result is None:
        return [*lines, "- The run is not finished."]
    costs, moved = result.get("costs") or {}, result["bytes"]
    for side in ("clients", "server"):
        for name, one in (costs.get(side) or {}).items():
            lines.append(f"- {name}: {one['macs_per_sample']:,} multiply-accumulates per image")
    return [*lines, f"- Training: {result['rounds']} rounds, {moved['up']:,} bytes up and {moved['down']:,} down"]
