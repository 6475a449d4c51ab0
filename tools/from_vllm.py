"""Writes docs/from_vllm.md: what Quire makes of each argument of vLLM's that people write.

    .venv/bin/python tools/from_vllm.py [--check]

The names are in tools/vllm_names.json; what is made of them is in the tables of fields and in
quire/vllm_names.py.
With ``--check`` nothing is written; the exit status says whether the page is what they say.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

from quire import LLM, BeamSearchParams, _core
from quire.vllm_names import OWNERS, Made, NoEffect, Renamed

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "from_vllm.md"
NAMES = json.loads((ROOT / "tools" / "vllm_names.json").read_text())
HEAD = f"""\
# Coming from vLLM

Written by `tools/from_vllm.py`. What Quire makes of the arguments of vLLM {NAMES["version"]}: those of the
same name mean the same, with the defaults and ranges of [fields of a request](request_fields.md) and of
[EngineConfig](../cpp/include/quire/engine_config.h). Others are taken and without effect where that changes
no result, or refused with a ValueError that says why; refused arguments may be None, or a value that asks for
nothing. `EngineArgs` and `AsyncEngineArgs` have `create_engine_config()`, `add_cli_args(parser)` and
`from_cli_args(args)`, and take what `LLM` takes. Models of your own come in [libraries](adding_a_model.md):
the group of entry points `vllm.general_plugins` is `quire.plugins`, `VLLM_PLUGINS` is `QUIRE_PLUGINS`.
"""


def of(*owners: str) -> set[str]:
    described = [*_core.request_fields(), *_core.engine_config_fields()]
    return {field["name"] for field in described if field["struct"] in owners}


# What is the same, and the owner of what is not.
SECTIONS: dict[str, tuple[Collection[str], str]] = {
    "LLM": (of("EngineConfig"), "EngineConfig"),
    "EngineArgs": (of("EngineConfig"), "EngineConfig"),
    "AsyncEngineArgs": (of("EngineConfig"), "EngineConfig"),
    "LLM.generate": (inspect.signature(LLM.generate).parameters, "LLM.generate"),
    "LLM.chat": (inspect.signature(LLM.chat).parameters, "LLM.chat"),
    "LLM.beam_search": (inspect.signature(LLM.beam_search).parameters, "LLM.beam_search"),
    "SamplingParams": (of("SamplingParams"), "SamplingParams"),
    "StructuredOutputsParams": (of("StructuredOutputsParams"), "StructuredOutputsParams"),
    "BeamSearchParams": ({field.name for field in fields(BeamSearchParams)}, ""),
}


def describe(made: Made) -> str:
    if isinstance(made, Renamed):
        return f"`{made.name}`"
    if isinstance(made, NoEffect):
        return f"taken, without effect: {made.why}"
    neutral = ", ".join(f"`{value!r}`" for value in made.neutral if value not in (False, "", [], {}))
    return f"refused{f' unless {neutral}' if neutral else ''}: {made.why}"


def section(title: str) -> str:
    same, owner = SECTIONS[title]
    names = NAMES[title]
    rows = [f"## {title}\n"]
    if title == "EngineArgs":
        names = [name for name in names if name not in NAMES["LLM"]]
        rows = [f"## {title}, and LLM's further keywords\n"]
    shared = [name for name in names if name in same]
    if shared:
        rows.append(f"The same: {', '.join(f'`{name}`' for name in shared)}.\n")
    others = [name for name in names if name not in same]
    if others:
        rows += ["| argument | |", "|---|---|"]
        rows += [f"| `{name}` | {describe(OWNERS[owner][name])} |" for name in others]
        rows.append("")
    return "\n".join(rows)


def page() -> str:
    return "\n".join([HEAD, *(section(title) for title in SECTIONS)])


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE} is not what the tables say: run {sys.argv[0]}")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
