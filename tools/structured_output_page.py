"""Writes the table of docs/structured_output.md: what is made of each keyword of JSON Schema.

    .venv/bin/python tools/structured_output_page.py [--check]

With ``--check`` nothing is written; the exit status says whether the table is what the code says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from quire import _core

PAGE = Path(__file__).resolve().parents[1] / "docs" / "structured_output.md"
HEAD = "| keyword | | |\n|---|---|---|\n"


def table() -> str:
    rows = []
    for keyword in _core.json_schema_keywords():
        rows.append(f"| `{keyword['name']}` | {keyword['support']} | {keyword['note']} |\n")
    return HEAD + "".join(rows)


def main() -> None:
    text = PAGE.read_text()
    page = text.split(HEAD)[0] + table()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page)
    elif text != page:
        sys.exit(f"{PAGE} is not what the code says: run {sys.argv[0]}")


if __name__ == "__main__":
    main()
