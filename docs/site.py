"""Hook of the site: what the pages link to outside `docs/` becomes part of it, so that every link holds offline.

The README is the front page. Other Markdown is a page as it is, a source file is a page that shows it, a folder is a
page with its README and a list of its files, and anything else (results) is copied.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(
    r"^(?P<fence>`{3,})\w*\n(?s:.*?)^(?P=fence)$|(?P<before>\]\()(?!https?:|mailto:|#)(?P<link>[^)#\s]+)", re.MULTILINE
)  # or a fenced block, in which nothing is a link
CODE = {".py": "python", ".toml": "toml", ".sh": "bash"}
SHOWN = {*CODE, ".json", ""}  # of a folder; folders in it have no suffix


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, the pages about the project, and all that they and the pages of `docs/` lead to."""
    waiting = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for page in files.documentation_pages():
        waiting += linked(page.content_string, DOCS / page.src_uri)
    while waiting:
        path = waiting.pop()
        if path.name == "README.md" and path.parent != ROOT:
            path = path.parent
        place = place_of(path)
        if path.is_relative_to(DOCS) or not path.exists() or files.get_file_from_path(place):
            continue
        if place.endswith(".md"):
            text = shown(path)
            files.append(File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
            waiting += linked(text, ROOT / place)
        else:
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has what they name."""
    place = page.file.src_uri
    here = DOCS / place if (DOCS / place).exists() else ROOT / place

    def moved(match: re.Match[str]) -> str:
        if match["link"] is None:
            return match[0]
        return match["before"] + os.path.relpath(place_of(target(here, match["link"])), Path(place).parent)

    return LINK.sub(moved, markdown)


def linked(text: str, path: Path) -> list[Path]:
    """What the Markdown of a file links to."""
    return [target(path, match["link"]) for match in LINK.finditer(text) if match["link"]]


def target(path: Path, link: str) -> Path:
    """What a relative link in a file leads to."""
    return Path(os.path.normpath(path.parent / link))


def place_of(path: Path) -> str:
    """Where the site has a file or folder of the repository."""
    place = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
    if path.is_dir():
        return f"{place}/README.md"
    return f"{place}.md" if path.suffix in CODE else place


def shown(path: Path) -> str:
    """A file or folder of the repository as Markdown."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        readme = path / "README.md"
        text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {name}\n"
        inside = [file for file in sorted(path.iterdir()) if file.suffix in SHOWN and file.name[0] not in "._"]
        return text + "\n## Files\n\n" + "".join(f"- [`{file.name}`]({file.name})\n" for file in inside)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    wide = "---\nhide: [navigation, toc]\nsearch:\n  exclude: true\n---\n\n"
    return f"{wide}# `{name}`\n\n````{CODE[path.suffix]}\n{text}````\n"
