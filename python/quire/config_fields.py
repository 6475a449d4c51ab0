"""The table of the configuration's fields, and how text becomes their values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from quire import _core

Field = dict[str, Any]


@cache
def engine_config_fields() -> dict[str, Field]:
    """What the table says of each field, by its name."""
    return {field["name"]: field for field in _core.engine_config_fields()}


def flag_name(field: str) -> str:
    """``--max-model-len``."""
    return "--" + field.replace("_", "-")


def environment_name(field: str) -> str:
    """``QUIRE_MAX_MODEL_LEN``."""
    return "QUIRE_" + field.upper()


def kind_of(field: Field) -> str:
    return str(field["type"]).removesuffix(" | None")


def read_list(name: str, texts: Sequence[str]) -> Any:
    if len(texts) == 1 and texts[0].lstrip().startswith("["):
        return read_field(name, texts[0])
    kind = kind_of(engine_config_fields()[name])
    return read_field(name, json.dumps(list(texts)) if kind == "list[str]" else f"[{','.join(texts)}]")


# What vLLM lets people write: 16k is 16,000 and 16K 16,384; 2.5k is 2,500.
_MULTIPLES = {
    letter: base**power
    for base, letters in ((1000, "kmgt"), (1024, "KMGT"))
    for power, letter in enumerate(letters, 1)
}


def read_field(name: str, text: str) -> Any:
    """The value that a text is for a field of ``EngineConfig``: JSON, or a string without its quotes.

    A whole number may end in k, m, g, t (of 1000) or K, M, G, T (of 1024). Raises ValueError.
    """
    field = engine_config_fields()[name]
    if kind_of(field) == "str":
        return text
    if kind_of(field) == "int" and (match := re.fullmatch(r"(\d+)(\.\d+)?([kmgtKMGT])", text.strip())):
        whole, fraction, letter = match.groups()
        if not fraction or letter.islower():
            text = str(round(float(whole + (fraction or "")) * _MULTIPLES[letter]))
        else:
            raise ValueError(f"{name} must be a whole number of {letter}, got '{text}'")
    if kind_of(field).startswith("list") and not text.lstrip().startswith("["):
        return read_list(name, text.split(","))
    return _core.read_engine_config_field(name, text)
