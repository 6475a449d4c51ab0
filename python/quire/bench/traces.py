"""Requests from files: ShareGPT's conversations, and recorded arrivals and lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from quire.bench.outcomes import BenchRequest
from quire.bench.tokens import TokenSource

_SHORTEST = 4  # tokens of a prompt or an answer of ShareGPT's that is of use
_LONGEST_PROMPT = 1024
_LONGEST = 2048  # prompt and answer
_MOONCAKE_BLOCK = 512  # tokens that one of its hash_ids stands for


def read_sharegpt(
    path: Path, tokens: TokenSource, output_len: int | None, count: int, rng: Random
) -> list[BenchRequest]:
    """First turns of at most ``count`` conversations, shuffled; very short and very long ones are left out.

    Raises ValueError naming the file for what is not of ShareGPT's form.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"dataset_path '{path}' must be ShareGPT's JSON: {error}") from None
    if not isinstance(found, list):
        raise ValueError(f"dataset_path '{path}' must be ShareGPT's JSON: a list of conversations")
    turns = [pair for one in found if (pair := _first_turns(one)) is not None]
    if found and not turns:
        raise ValueError(
            f"dataset_path '{path}' has no conversation of two turns; each wants "
            '{"conversations": [{"value": "..."}, {"value": "..."}]}'
        )
    rng.shuffle(turns)
    made: list[BenchRequest] = []
    for prompt, answer in turns:
        prompt_len = tokens.count(prompt)
        length = output_len or tokens.count(answer)
        if min(prompt_len, length) < _SHORTEST and output_len is None:
            continue
        if prompt_len > _LONGEST_PROMPT or prompt_len + length > _LONGEST:
            continue
        made.append(BenchRequest(prompt, prompt_len, length))
        if len(made) == count:
            break
    return made


def _first_turns(one: Any) -> tuple[str, str] | None:
    turns = one.get("conversations") if isinstance(one, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    values = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    return (values[0], values[1]) if isinstance(values[0], str) and isinstance(values[1], str) else None


def read_trace(
    path: Path, tokens: TokenSource, prompt_form: str, count: int, rng: Random
) -> list[BenchRequest]:
    """The first ``count`` requests of a trace by arrival, with arrival times and made-up tokens.

    JSON lines, as ``quire simulate --workload`` takes them: {"arrival": s, "prompt_len": n, "output_len": n,
    "prefix": "name", "prefix_len": n}, the last two optional; or Mooncake's {"timestamp": ms,
    "input_length": n, "output_length": n, "hash_ids": [id of 512 tokens, ...]}. Where a prefix is named, or
    hash_ids are equal, prompts begin with the same tokens. Raises ValueError naming file, line and field.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"dataset_path '{path}' cannot be read: {error}") from None
    records = [
        _record(f"dataset_path '{path}', line {number}", line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    records.sort(key=lambda record: record[0])
    made = []
    for arrival, prompt_len, output_len, pieces in records[:count]:
        prompt = _prompt(pieces, tokens, prompt_form, rng)
        made.append(BenchRequest(prompt, prompt_len, output_len, arrival=arrival))
    return made


def _prompt(
    pieces: Sequence[tuple[str, int]], tokens: TokenSource, prompt_form: str, rng: Random
) -> str | list[int]:
    """A named piece is drawn by its name: it is the same, or begins the same, wherever it occurs."""
    if prompt_form == "ids":
        drawn = (tokens.draw_ids(length, Random(name) if name else rng) for name, length in pieces)
        return [token for piece in drawn for token in piece]
    added = tokens.count("")  # by the tokenizer, once
    left = max(sum(length for _, length in pieces) - added, 1)
    text = ""
    for name, length in pieces:
        own = min(length, left)
        if own:
            text += tokens.draw_text(own + added, Random(name) if name else rng)
        left -= own
    return text


_Record = tuple[float, int, int, list[tuple[str, int]]]


def _record(where: str, line: str) -> _Record:
    """Arrival in seconds, both lengths, and the pieces of the prompt: a name ("" is its own) and tokens."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must be a JSON object, got {line[:60]}")
    if "timestamp" in fields:
        arrival = _number(where, fields, "timestamp", 0) / 1000
        prompt_len = int(_number(where, fields, "input_length", 1))
        output_len = int(_number(where, fields, "output_length", 1))
        return arrival, prompt_len, output_len, list(_blocks(where, fields, prompt_len))
    arrival = _number(where, fields, "arrival", 0)
    prompt_len = int(_number(where, fields, "prompt_len", 1))
    output_len = int(_number(where, fields, "output_len", 1))
    prefix_len = min(int(_number(where, {"prefix_len": 0, **fields}, "prefix_len", 0)), prompt_len)
    name = str(fields.get("prefix", ""))
    if not name:
        return arrival, prompt_len, output_len, [("", prompt_len)]
    return arrival, prompt_len, output_len, [(f"prefix {name}", prefix_len), ("", prompt_len - prefix_len)]


def _blocks(where: str, fields: Mapping[str, Any], prompt_len: int) -> Iterator[tuple[str, int]]:
    ids = fields.get("hash_ids") or []
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        raise ValueError(f"{where}: hash_ids must be a list, got {ids!r:.60}")
    left = prompt_len
    for one in ids:
        length = min(left, _MOONCAKE_BLOCK)
        yield f"block {one}", length
        left -= length
    yield "", left


def _number(where: str, fields: Mapping[str, Any], name: str, least: int) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e15:
        raise ValueError(f"{where}: {name} must be a number of at least {least}, got {value!r:.60}")
    return float(value)
