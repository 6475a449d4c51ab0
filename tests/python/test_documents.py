"""What the documents quote is in the source, and what they link to is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "tests" / "README.md",
        *ROOT.glob("tests/cpp/**/*.md"),
    ]
)
# ```cpp cpp/src/engine/engine_core.cpp
EXCERPT = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
IMPORT = re.compile(r"^from (quire[\w.]*) import ([\w, ]+)", re.MULTILINE)
# A line that stands for what is left out.
GAP = re.compile(r"^\s*(?://|#) \.\.\.$")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def stretches(excerpt: str) -> list[str]:
    """What lies between gaps: whole lines."""
    parts: list[list[str]] = [[]]
    for line in excerpt.splitlines():
        if GAP.match(line):
            parts.append([])
        else:
            parts[-1].append(line)
    return ["\n".join(part) for part in parts if part]


def position_after(source: str, stretch: str, begin: int) -> int:
    """Where the stretch ends in the source, as whole lines, from `begin` on; -1 when it is not there."""
    found = ("\n" + source).find("\n" + stretch + "\n", begin)
    return found + len(stretch) if found >= 0 else -1


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_excerpts_are_what_the_source_says(page: Path) -> None:
    for file, excerpt in EXCERPT.findall(page.read_text()):
        source = (ROOT / file).read_text()
        end = 0
        for stretch in stretches(excerpt):
            end = position_after(source, stretch, end)
            assert end >= 0, f"{file} does not say, or not in this order:\n{stretch}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    missing = [link for link in LINK.findall(text) if not (page.parent / link.strip()).exists()]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if IMPORT.search(page.read_text())], ids=name)
def test_what_pages_import_is_there(page: Path) -> None:
    for module, names in IMPORT.findall(page.read_text()):
        imported = importlib.import_module(module)
        missing = [one for one in names.split(", ") if not hasattr(imported, one.split(" as ")[0].strip())]
        assert not missing, f"{module} has no {missing}"


def test_excerpts_that_are_not_there_are_found() -> None:
    source = "int a;\n  int b;\nint c;\n"
    assert position_after(source, "int a;\n  int b;", 0) > 0
    assert position_after(source, "int b;", 0) == -1
    assert position_after(source, "int a;", position_after(source, "int c;", 0)) == -1
    assert stretches("int a;\n  // ...\nint c;\n") == ["int a;", "int c;"]
