"""docs/checkpoints.md has tables of what the code's own lists say, and each row has a test."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
checkpoints_page: Any = importlib.import_module("checkpoints_page")
ROWS = [*checkpoints_page.directory_rows(), *checkpoints_page.gguf_rows()]


def test_the_page_of_checkpoints_is_what_the_code_says() -> None:
    text = checkpoints_page.PAGE.read_text()
    assert text == checkpoints_page.page(text), "run tools/checkpoints_page.py, or `make stubs`"


def test_what_is_changed_by_hand_is_found() -> None:
    text = checkpoints_page.PAGE.read_text()
    changed = text.replace("types of tensors | F32, F16", "types of tensors | F32, F64")
    assert changed != text and checkpoints_page.page(changed) == text
    with pytest.raises(LookupError, match="no place for the table 'gguf'"):
        checkpoints_page.page(text.replace("<!-- gguf ends -->", ""))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.cells[0])
def test_every_row_has_a_test_that_is_there(row: Any) -> None:
    assert row.tests and checkpoints_page.links(row)


def test_a_row_whose_test_is_gone_is_an_error() -> None:
    row = checkpoints_page.Row(("x",), ("test_gguf.py::test_nothing_of_this_name",))
    with pytest.raises(LookupError, match=r"tests/python has no test_gguf\.py::test_nothing_of_this_name"):
        checkpoints_page.links(row)
