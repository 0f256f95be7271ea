"""Reports, studies, the page of runs and the documentation in headless Chromium, light and dark, wide and narrow.

    pip install playwright && make site && python benchmarks/browser.py --pictures /tmp/pages     # a few minutes

Needs Chromium (`--chromium` says where). Counts what a reader would not see: errors on the console, requests that leave
the machine or fail, text that is wider than the screen. `--pictures` keeps a picture of every page, to be looked at.
Results go to `benchmarks/results/browser.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from catchment.watching.server import watching

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "browser.json"
SITE = ROOT / "build" / "site"
THEMES, WIDTHS = ("light", "dark"), (390, 1280)  # a phone's and a desk's, in CSS pixels
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
EXPERIMENT = """
name = "seen"
rounds = 3
method.name = "fedgkt"
data = { clients = 4, train = 200, test = 100 }
models = { client = "resnet4", server = "resnet10" }
devices.profile = "phone"
"""
BESIDE = "document.scrollingElement.scrollWidth - window.innerWidth"  # CSS pixels that lie beside the screen


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *arguments: object) -> None:
        pass


def made(folder: Path) -> Path:
    """Runs to look at: one with the probe and an attack, one that stopped, and a study."""
    (folder / "seen.toml").write_text(EXPERIMENT)
    for command in (
        "run seen.toml --set probe.inversion=true --set attack.name=sign-flip --out runs/attacked",
        "run seen.toml --set evaluation.headline=macro_f1 --out runs/stopped",
        "study seen.toml --vary method.name=standalone,fedgkt --vary seed=0..1 --out study",
    ):
        subprocess.run([sys.executable, "-m", "catchment", *command.split()], cwd=folder, check=True)
    (folder / "runs" / "stopped" / "result.json").unlink()
    return folder / "runs"


def addresses(folder: Path, watch: str, site: str) -> Iterator[tuple[str, str, str]]:
    """Kind, name and address of every page."""
    yield "report of a run", "report", (folder / "runs/attacked/report.html").as_uri()
    yield "page of a study", "study", next(folder.glob("study/*.html")).as_uri()
    for name, place in {
        "runs": "", "run": "#run=attacked", "running": "#run=stopped", "client": "#run=attacked&client=1",
        "nobody": "#run=attacked&client=99",
    }.items():  # fmt: skip
        yield "page of runs", f"watch-{name}", watch + place
    for file in sorted(SITE.rglob("*.html")):
        place = file.relative_to(SITE).as_posix()
        yield "documentation", f"site-{place.removesuffix('.html').replace('/', '-')}", f"{site}/{place}"


def looked_at(browser: Browser, name: str, address: str, pictures: Path | None) -> Counter[str]:
    """What was wrong with one page, over themes and widths."""
    found: Counter[str] = Counter()
    wrong = () if name == "watch-nobody" else ("error", "warning")  # that there is no such client is that page's answer
    for theme in THEMES:
        for width in WIDTHS:
            context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
            page: Page = context.new_page()
            page.on("console", lambda said: found.update(console=said.type in wrong))
            page.on("pageerror", lambda error: found.update(errors=1))
            page.on("request", lambda asked: found.update(elsewhere=not is_here(asked.url)))
            page.on("requestfailed", lambda asked: found.update(failed=is_here(asked.url)))
            page.goto(address)
            page.wait_for_timeout(700)
            wider = int(page.evaluate(BESIDE))
            found.update(views=1, wider=wider > 0)
            if wider > 0:
                print(f"{name}, {theme}, {width}: {wider} pixels too wide", flush=True)
            if pictures:
                page.screenshot(path=pictures / f"{name}-{theme}-{width}.png", full_page=True)
            context.close()
    return found


def is_here(address: str) -> bool:
    """Whether a request stays on this machine."""
    return urlsplit(address).scheme in ("data", "file", "blob", "about") or urlsplit(address).hostname == "127.0.0.1"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}"
    kinds: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder, watching(made(Path(folder))) as watch, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=options.chromium, args=[*FLAGS])
        for kind, name, address in addresses(Path(folder), watch, site):
            found = looked_at(browser, name, address, options.pictures)
            kinds.setdefault(kind, Counter()).update(found)
            kinds[kind]["pages"] += 1
            if wrong := {what: count for what, count in found.items() if count and what != "views"}:
                print(name, wrong, flush=True)
        version = browser.version
        browser.close()
    measured = {"chromium": version, "themes": THEMES, "widths": WIDTHS, "kinds": kinds}
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
