"""What requests ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from quire.bench.outcomes import BenchRequest
from quire.bench.tokens import TokenSource

DATASETS = ("random", "sharegpt", "prefix_repetition", "json", "trace")

# ShareGPT-like lengths, as `quire simulate` has them: log-normal by median and sigma, cut off.
_PROMPT_LENGTHS = (120, 1.2, 4, 1024)
_OUTPUT_LENGTHS = (140, 0.9, 1, 1024)


@dataclass(frozen=True)
class WorkloadOptions:
    """Names are those of vLLM's benchmarks. Raises ValueError, naming the field, for what cannot be."""

    dataset_name: str = "random"
    dataset_path: str | None = None
    num_prompts: int = 1000
    seed: int = 0
    prompt_form: str = "ids"  # "ids" or "text"
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0  # lengths are drawn from [(1 - ratio) * len, (1 + ratio) * len]
    random_prefix_len: int = 0  # tokens that all prompts begin with, besides
    sharegpt_output_len: int | None = None  # instead of that of the recorded answer
    prefix_repetition_prefix_len: int = 256
    prefix_repetition_suffix_len: int = 256
    prefix_repetition_num_prefixes: int = 10
    prefix_repetition_output_len: int = 128
    json_output_len: int = 256

    def __post_init__(self) -> None:
        if self.dataset_name not in DATASETS:
            raise ValueError(f"dataset_name must be one of {', '.join(DATASETS)}, got '{self.dataset_name}'")
        if self.prompt_form not in ("ids", "text"):
            raise ValueError(f"prompt_form must be ids or text, got '{self.prompt_form}'")
        if self.dataset_name == "trace" and self.dataset_path is None:
            raise ValueError("dataset_path is missing; --dataset-name trace reads a file")
        if self.dataset_path is not None and self.dataset_name in ("random", "prefix_repetition"):
            raise ValueError(f"dataset_path: --dataset-name {self.dataset_name} reads no file; leave it out")
        if not 0 <= self.random_range_ratio < 1:
            raise ValueError(
                f"random_range_ratio must be at least 0 and below 1, got {self.random_range_ratio}"
            )
        for name in (
            "num_prompts",
            "random_input_len",
            "random_output_len",
            "prefix_repetition_suffix_len",
            "prefix_repetition_num_prefixes",
            "prefix_repetition_output_len",
            "json_output_len",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("random_prefix_len", "prefix_repetition_prefix_len"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.sharegpt_output_len is not None and self.sharegpt_output_len < 1:
            raise ValueError(f"sharegpt_output_len must be at least 1, got {self.sharegpt_output_len}")


def make_workload(options: WorkloadOptions, tokens: TokenSource, num_more: int = 0) -> list[BenchRequest]:
    """``num_prompts`` requests, and ``num_more`` behind them for warming up; the same seed, the same ones.

    A trace has at most as many as there are in its file; the others repeat it. Raises ValueError naming
    the file, and what is wrong with it.
    """
    made = _MAKERS[options.dataset_name](_Maker(options, tokens, Random(options.seed)), num_more)
    if not made:
        raise ValueError(f"dataset_path '{options.dataset_path}' has no requests")
    return made


class _Maker:
    def __init__(self, options: WorkloadOptions, tokens: TokenSource, rng: Random) -> None:
        self.options = options
        self.tokens = tokens
        self.rng = rng

    def prompt(self, count: int) -> str | list[int]:
        if self.options.prompt_form == "ids":
            return self.tokens.draw_ids(count, self.rng)
        return self.tokens.draw_text(count, self.rng)

    def length(self, mean: int) -> int:
        ratio = self.options.random_range_ratio
        return self.rng.randint(max(math.floor(mean * (1 - ratio)), 1), max(math.ceil(mean * (1 + ratio)), 1))

    def request(self, prefix: str | list[int], prefix_len: int, own: int, output_len: int) -> BenchRequest:
        """A prefix, and tokens of the request's own behind it."""
        if not prefix:
            return BenchRequest(self.prompt(own), own, output_len)
        if isinstance(prefix, list):
            return BenchRequest(prefix + self.tokens.draw_ids(own, self.rng), prefix_len + own, output_len)
        added = self.tokens.count("")  # in the prefix already
        return BenchRequest(
            prefix + self.tokens.draw_text(own + added, self.rng), prefix_len + own, output_len
        )

    def log_normal(self, median: float, sigma: float, low: int, high: int) -> int:
        return min(max(round(self.rng.lognormvariate(math.log(median), sigma)), low), high)


def _random(maker: _Maker, num_more: int) -> list[BenchRequest]:
    options = maker.options
    shared = maker.prompt(options.random_prefix_len) if options.random_prefix_len else ""
    return [
        maker.request(
            shared,
            options.random_prefix_len,
            maker.length(options.random_input_len),
            maker.length(options.random_output_len),
        )
        for _ in range(options.num_prompts + num_more)
    ]


def _prefix_repetition(maker: _Maker, num_more: int) -> list[BenchRequest]:
    options = maker.options
    length = options.prefix_repetition_prefix_len
    prefixes = [maker.prompt(length) if length else "" for _ in range(options.prefix_repetition_num_prefixes)]
    made = [
        maker.request(
            prefixes[i % len(prefixes)],
            length,
            options.prefix_repetition_suffix_len,
            options.prefix_repetition_output_len,
        )
        for i in range(options.num_prompts)
    ]
    maker.rng.shuffle(made)
    own = options.prefix_repetition_suffix_len
    return made + [
        BenchRequest(maker.prompt(length + own), length + own, options.prefix_repetition_output_len)
        for _ in range(num_more)
    ]


def _sharegpt(maker: _Maker, num_more: int) -> list[BenchRequest]:
    options = maker.options
    count = options.num_prompts + num_more
    if options.dataset_path is not None:
        from quire.bench.traces import read_sharegpt

        found = read_sharegpt(
            Path(options.dataset_path), maker.tokens, options.sharegpt_output_len, count, maker.rng
        )
        return _repeated(found, count)
    made = []
    for _ in range(count):
        prompt_len = maker.log_normal(*_PROMPT_LENGTHS)
        output_len = options.sharegpt_output_len or maker.log_normal(*_OUTPUT_LENGTHS)
        made.append(BenchRequest(maker.prompt(prompt_len), prompt_len, output_len))
    return made


def _repeated(found: Sequence[BenchRequest], count: int) -> list[BenchRequest]:
    return [found[i % len(found)] for i in range(count)] if found else []


def _json(maker: _Maker, num_more: int) -> list[BenchRequest]:
    options = maker.options
    schemas = _SCHEMAS if options.dataset_path is None else _read_schemas(Path(options.dataset_path))
    made = []
    for i in range(options.num_prompts + num_more):
        schema = schemas[i % len(schemas)]
        text = (
            f"Number {maker.rng.randrange(10**6)}. Answer with JSON under this schema: {json.dumps(schema)}"
        )
        count = maker.tokens.count(text)
        made.append(BenchRequest(text, count, options.json_output_len, schema=schema))
    return made


def _read_schemas(path: Path) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"dataset_path '{path}' must be a JSON schema, or a list of them: {error}") from None
    schemas = found if isinstance(found, list) else [found]
    if not schemas or not all(isinstance(schema, dict) for schema in schemas):
        raise ValueError(f"dataset_path '{path}' must be a JSON schema that is an object, or a list of them")
    return schemas


def _trace(maker: _Maker, num_more: int) -> list[BenchRequest]:
    from quire.bench.traces import read_trace

    options = maker.options
    assert options.dataset_path is not None
    made = read_trace(
        Path(options.dataset_path), maker.tokens, options.prompt_form, options.num_prompts, maker.rng
    )
    return made + _repeated(made, num_more)


_MAKERS: dict[str, Callable[[_Maker, int], list[BenchRequest]]] = {
    "random": _random,
    "sharegpt": _sharegpt,
    "prefix_repetition": _prefix_repetition,
    "json": _json,
    "trace": _trace,
}

_NAME = {"type": "string", "maxLength": 20}
# Bounded, so that an answer under one of them ends before json_output_len tokens.
_SCHEMAS: list[Mapping[str, Any]] = [
    {
        "type": "object",
        "properties": {"name": _NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "Lima", "Nairobi", "Kyoto"]},
            "unit": {"enum": ["celsius", "kelvin"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city", "unit", "days"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "sku": _NAME,
                        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                    },
                    "required": ["sku", "quantity"],
                    "additionalProperties": False,
                },
            },
            "paid": {"type": "boolean"},
        },
        "required": ["items", "paid"],
        "additionalProperties": False,
    },
]
