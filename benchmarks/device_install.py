"""How large an install is: of a device, and of a server.

    python benchmarks/device_install.py     # fresh environments, the versions of constraints.txt; minutes

Each extra is installed into an empty virtual environment, without pip, and tried. Sizes are those of the files that
pip put there, compiled Python included. Results go to `benchmarks/results/device.json`.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "device.json"
EXTRAS = ("device", "server")
SHOWN = 12  # packages by name; the others together
PROJECT = ("catchment", "pyproject.toml", "README.md", "LICENSE", "constraints.txt")
TRIED = {
    "device": "import flwr, catchment.cli.app; from catchment.codecs import Codecs; Codecs.parse(['x=int8+zstd'])",
    "server": "import flwr, catchment.cli.app, catchment.report.figures, catchment.data.parquet, catchment.keys.keys",
}


def copied(folder: Path) -> Path:
    """The project without what lies around it: building it leaves files beside the sources."""
    for name in PROJECT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def installed(extra: str, folder: Path) -> dict:
    """What an install with this extra has, in MB."""
    project = folder / "project"
    project.mkdir()
    copied(project)
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    constraints = ["-c", str(project / "constraints.txt")]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, *constraints, f"{project}[{extra}]"], check=True)
    subprocess.run([str(python), "-c", TRIED[extra]], check=True, cwd=folder)
    (site,) = environment.glob("lib/python*/site-packages")
    sizes = {found.metadata["Name"]: size_of(found) for found in distributions(path=[str(site)])}
    largest = sorted(sizes, key=lambda name: -sizes[name])
    shown = {name: megabytes(sizes[name]) for name in largest[:SHOWN]}
    total = sum(sizes.values())
    rest = total - sum(sizes[name] for name in largest[:SHOWN])
    return {
        "total_mb": megabytes(total),
        "without_torch_mb": megabytes(total - sizes["torch"]),
        "packages": len(sizes),
        "mb": {**shown, "others": megabytes(rest)},
    }


def size_of(found: Distribution) -> int:
    """Bytes of the files of a package that are there."""
    paths = (Path(str(file.locate())) for file in found.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def megabytes(size: int) -> float:
    return round(size / 1e6, 1)


def main() -> None:
    report: dict = {"python": platform.python_version(), "machine": platform.machine(), "extras": {}}
    for extra in EXTRAS:
        with tempfile.TemporaryDirectory() as folder:
            report["extras"][extra] = installed(extra, Path(folder))
        print(extra, json.dumps(report["extras"][extra], indent=1), flush=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
