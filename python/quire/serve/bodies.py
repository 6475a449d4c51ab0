"""Bodies that are read in Python: JSON objects whose fields are known."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from quire import _core
from quire.values import bool_value


def parse_object(body: bytes) -> dict[str, Any] | _core.HttpError:
    """The object that a body is.

    The parser is C and would hold the interpreter until it is through. What it calls is Python, where other
    threads have their turn.
    """
    try:
        value = json.loads(body, object_hook=lambda made: made, parse_int=lambda text: int(text))
    except (ValueError, RecursionError) as error:
        return _core.HttpError(400, f"the body must be JSON: {error}")
    return value if isinstance(value, dict) else _core.HttpError(400, "the body must be a JSON object")


def check_fields(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ValueError for a field that is not known."""
    for name in body:
        if name not in known:
            # As Python writes it: what JSON has may be no text.
            raise ValueError(f"{name!r:.100} is not a field we know; there are {', '.join(known)}")


def given_flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Raises TypeError for what is no bool; null is the default."""
    value = body.get(name)
    return default if value is None else bool_value(name, value)


def refusal(error: Exception, fields: Collection[str]) -> _core.HttpError:
    """Of a complaint that begins with a field's name, or with its path."""
    first = re.match(r"\w+", str(error))
    name = first[0] if first and first[0] in fields else ""
    return _core.HttpError(400, str(error), param=name)
