"""Values as callers give them: taken, or refused by name, value and what would do."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from numbers import Integral, Real
from typing import Any

from quire._core import SamplingParams

INT32 = (-(2**31), 2**31 - 1)


def describe(value: object) -> str:
    """A value as a message shows it: short, and whatever its class makes of repr."""
    try:
        text = f"{value!r:.60}"
    except Exception:  # a repr of the caller's, or an int of more digits than Python prints
        text = "something that cannot be printed"
    return f"{text} ({type(value).__name__})"


def values_for_each(name: str, value: object, num_prompts: int) -> list[Any]:
    """One value for all prompts, or one for each, in their order.

    What has no order, or is text, is one value. An iterable that never ends is refused like any that has more
    than there are prompts.
    """
    if isinstance(value, (str, bytes, Mapping, set, frozenset)) or not isinstance(value, Iterable):
        return [value] * num_prompts
    values = list(islice(value, num_prompts + 1))
    if len(values) != num_prompts:
        count = len(values) if len(values) < num_prompts else f"more than {num_prompts}"
        raise ValueError(f"{name} has {count} entries for {num_prompts} prompts; give one for each")
    return values


def text_value(name: str, value: object) -> str:
    """A string that is text. Raises TypeError for anything else, ValueError for one with a lone surrogate."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {describe(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} must be valid Unicode; character {error.start} is the lone surrogate "
                f"{value[error.start]!r}"
            ) from None
    return value


def path_value(name: str, value: Any) -> str:
    """A path, as a string or an object for one. Raises TypeError or ValueError for anything else."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, got {describe(value)}")
    path = text_value(name, os.fspath(value))
    if "\0" in path:
        raise ValueError(f"{name} must be a path, got {describe(path)}, which holds a NUL character")
    return path


def bool_value(name: str, value: object) -> bool:
    """Raises TypeError for what is none."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {describe(value)}")
    return value


def int32_value(name: str, value: object) -> int:
    """A whole number that fits. Raises TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {describe(value)}")
    number = int(value)
    if not INT32[0] <= number <= INT32[1]:
        raise ValueError(f"{name} must be between {INT32[0]} and {INT32[1]}, got {describe(value)}")
    return number


def seconds_value(name: str, value: Any) -> float:
    """A number of seconds, perhaps infinite. Raises TypeError or ValueError for anything else."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, got {describe(value)}")
    number: Any = value
    try:
        seconds = float(number)
    except OverflowError:  # an int
        seconds = math.inf if number > 0 else -math.inf
    if math.isnan(seconds):
        raise ValueError(f"{name} must be a number of seconds, got nan")
    return seconds


def sampling_params_value(
    value: object, default: Callable[[], SamplingParams], expected: str = "SamplingParams"
) -> SamplingParams:
    """The parameters, or the default for None. Raises TypeError for anything else."""
    if value is None:
        return default()
    if not isinstance(value, SamplingParams):
        raise TypeError(f"sampling_params must be {expected}, got {describe(value)}")
    return value


def to_json(name: str, value: object) -> str:
    """A value as JSON. Raises TypeError or ValueError, naming it, for what has none."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:  # NaN, a list in itself
        raise ValueError(f"{name}: {error}") from None
    return text_value(name, text)
