"""Writes docs/request_fields.md from the tables beside the structs (cpp/include/quire/field.h).

    .venv/bin/python tools/request_fields.py [--check]

With ``--check`` nothing is written; the exit status says whether the page is what the tables say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from quire import _core

PAGE = Path(__file__).resolve().parents[1] / "docs" / "request_fields.md"
HEAD = """\
# Fields of a request

Written by `tools/request_fields.py` from the tables in
[sampling_params.h](../cpp/include/quire/sampling_params.h), [engine.h](../cpp/include/quire/engine.h) and
[chat.h](../cpp/include/quire/chat.h). The names are those of C++, of Python, of JSON (`sampling_parameters`)
and of Triton's request parameters; there, clients do not set the ones marked *. In Python, None leaves the
default, and is no limit for `max_tokens`.
"""


def table(owner: str, fields: list[dict[str, Any]]) -> str:
    rows = [f"## {owner}\n", "| field | type | default | range | |", "|---|---|---|---|---|"]
    for field in fields:
        if field["struct"] != owner:
            continue
        name = f"`{field['name']}`" + ("" if field["set_by_clients"] else " *")
        default = getattr(field["default"], "name", repr(field["default"]))
        kind = field["type"].replace("|", "\\|")
        rows.append(f"| {name} | {kind} | {default} | {field['range']} | {field['doc']} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    fields = _core.request_fields()
    owners = list(dict.fromkeys(field["struct"] for field in fields))
    return "\n".join([HEAD, *(table(owner, fields) for owner in owners)])


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE} is not what the tables say: run {sys.argv[0]}")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
