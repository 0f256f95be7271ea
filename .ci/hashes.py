"""Write what an install of Catchment takes on a machine of this kind, with the hash of every file, for pip to check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def requirements(report: dict[str, Any]) -> list[str]:
    """A line for each package in pip's report of an install, but for Catchment's own."""
    lines = []
    for package in report["install"]:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if name == "catchment-fl":
            continue
        digest = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            sys.exit(f"pip knows no hash of {name} {version}: {package['download_info']['url']} is not a file")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(lines, key=str.lower)


def main() -> None:
    """Ask pip what it would install for an extra with the pinned versions, and write it to hashes-EXTRA.txt."""
    if len(sys.argv) != 2:
        sys.exit("usage: hashes.py EXTRA, where EXTRA is server, device or research")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]
    what = ["--constraint", str(ROOT / "constraints.txt"), f"{ROOT}[{sys.argv[1]}]"]
    done = subprocess.run(
        [*pip, "--dry-run", "--ignore-installed", "--report", "-", *what], check=True, stdout=subprocess.PIPE
    )
    lines = requirements(json.loads(done.stdout))
    (ROOT / f"hashes-{sys.argv[1]}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
