"""The pictures of docs/performance.md show what its tables say."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
performance_page: Any = importlib.import_module("performance_page")
TEXT = performance_page.PAGE.read_text()


def test_the_pictures_are_those_of_the_page() -> None:
    drawn = performance_page.pictures(TEXT)
    for name, picture in drawn.items():
        assert f"](images/{name})" in TEXT
        assert (performance_page.IMAGES / name).read_text() == picture, "run `make stubs`"
    assert {path.name for path in performance_page.IMAGES.glob("*.svg")} == set(drawn)


def test_another_figure_is_another_picture() -> None:
    drawn, changed = performance_page.pictures(TEXT), TEXT.replace("| down | 7.5 |", "| down | 9.5 |")
    pictures = performance_page.pictures(changed)
    assert [name for name in drawn if pictures[name] != drawn[name]] == ["performance-layer.svg"]
    assert ">9.5<" in pictures["performance-layer.svg"]


def test_a_table_that_is_gone_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"performance\.md has no table of \('kernel',\)"):
        performance_page.pictures(TEXT.replace("| kernel |", "| op |"))
