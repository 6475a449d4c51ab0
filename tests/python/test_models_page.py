"""docs/models.md is what the tests say, and they say enough of every architecture."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
models_page: Any = importlib.import_module("models_page")


def test_the_page_of_models_is_what_the_tests_say() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    assert text == models_page.page(), "run tools/models_page.py, or `make stubs`"


@pytest.mark.parametrize("row", models_page.rows(), ids=lambda row: row.architecture)
def test_every_architecture_is_compared(row: Any) -> None:
    if row.same_as:
        assert row.published
        return
    assert len(row.cases) >= 2
    assert row.bfloat16
    assert row.ranks
    assert row.engine


def test_every_architecture_that_the_engine_knows_is_on_the_page() -> None:
    # In a process of its own: another test may have loaded a plugin into this one.
    script = "import quire; print(*quire.ModelRegistry.get_supported_archs())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == models_page.registered()
