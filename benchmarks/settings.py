"""Write the tables of keys into docs/experiment.md and docs/studies.md, from the dataclasses that files are read into.

python benchmarks/settings.py
"""

from __future__ import annotations

import re
from pathlib import Path

from catchment.cli.describing import options
from catchment.config import settings
from catchment.config.experiment import Experiment
from catchment.learning.optimizers import OptimizerSettings
from catchment.learning.schedules import Schedule
from catchment.privacy.inversion import ProbeSettings
from catchment.robust.inspection import Inspection
from catchment.simulation.devices import DeviceProfile, Faults
from catchment.studies.form import Form

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "experiment.md", DOCS / "studies.md"]
TABLES = {
    "top": Experiment,
    "data": settings.DataSettings,
    "models": settings.ModelSettings,
    "optimizer": OptimizerSettings,
    "schedule": Schedule,
    "participation": settings.ParticipationSettings,
    "devices": settings.DeviceSettings,
    "profiles": DeviceProfile,
    "faults": Faults,
    "wire": settings.WireSettings,
    "evaluation": settings.EvaluationSettings,
    "checkpoint": settings.CheckpointSettings,
    "probe": ProbeSettings,
    "inspection": Inspection,
    "flower": settings.FlowerSettings,
    "study": Form,
}


def table(kind: type) -> str:
    """A row for each key; tables of tables have sections of their own."""
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for option in options(kind):
        if kind is not Experiment or option.kind != "table":
            default = f"`{option.default}`" if option.default not in ("", "none") else option.default
            cells = (f"`{option.name}`", option.kind, default, option.meaning)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def rewritten(page: str) -> str:
    """The page with its tables as they are now."""
    for name, kind in TABLES.items():
        pattern = re.compile(rf"(<!-- settings {name} -->\n).*?(<!-- /settings {name} -->)", re.DOTALL)
        text = table(kind)
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rewritten(path.read_text()))
