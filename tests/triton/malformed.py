"""Requests that must be refused, and the word that the refusal must contain."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Malformed:
    """A KServe infer request (JSON), and what its refusal names."""

    body: dict[str, Any]
    names: str


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


TEXT = tensor("text_input", "BYTES", ["Once upon a time"])
FLAGS = (
    "stream",
    "exclude_input_in_output",
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_prompt_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_output_ids",
    "return_message",
    "return_usage",
    "cancel",
)
SOME_OF_EACH = {"BOOL": True, "INT32": 3, "UINT8": 1, "INT64": 7, "FP32": 0.5, "BYTES": "x"}
# A sampling parameter and values that it cannot have.
BAD_VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, -1e30, "warm", [], {}, True, "1e400"),
    "top_p": (0, -0.5, 1.5, 1e300, "half"),
    "top_k": (-7, 1.5, 2**40, -(2**63), "many"),
    "min_p": (-0.1, 2, "x"),
    "presence_penalty": (-3, 1e9, []),
    "frequency_penalty": (2.5, {}),
    "repetition_penalty": (0, -1),
    "logit_bias": ([1], {"x": 1}, {"1": 1000}, {"999999999": 1}, {"-1": 1}),
    "seed": (-1, 1.5, "abc"),
    "max_tokens": (0, -1, 2**31, 2**63, 1e30, 1.5, "lots"),
    "min_tokens": (-1, 2**31),
    "stop": ("", [""], [1], {}, 5),
    "stop_token_ids": ("x", [1.5], [-1], [2**31], [10**7]),
    "ignore_eos": ("maybe", 1, []),
    "n": (0, -1, 257, 2**31, 1e9),
    "logprobs": (-1, -2, 101, 2**40, "all"),
    "deadline_ms": (-1, 1.5, "soon"),
    "priority": (2**31, "high"),
    "user": (5, []),
    "beam_width": (0, -1, 257, "wide"),
    "early_stopping": ("ever", 3),
    "best_of": (3,),
    "use_beam_search": (True,),
    "lora_name": ("adapter", 5),
    "no_such_field": (1, None, "x"),
}


def _bad_sampling(rng: random.Random) -> Malformed:
    name = rng.choice(sorted(BAD_VALUES))
    value = rng.choice(BAD_VALUES[name])
    others = {"max_tokens": 3} if name != "max_tokens" else {}
    text = json.dumps({**others, name: value})
    return Malformed({"inputs": [TEXT, tensor("sampling_parameters", "BYTES", [text])]}, name)


def _bad_parameter(rng: random.Random) -> Malformed:
    names = [name for name in sorted(BAD_VALUES) if name != "priority"]
    name = rng.choice(names)
    scalars = [
        v
        for v in BAD_VALUES[name]
        if isinstance(v, (str, float, bool)) or (isinstance(v, int) and abs(v) < 2**63)
    ]
    if not scalars:
        return _bad_sampling(rng)
    return Malformed({"inputs": [TEXT], "parameters": {name: rng.choice(scalars)}}, name)


def _bad_json(rng: random.Random) -> Malformed:
    text = rng.choice(["{", "[]", "5", '"x"', "{'a': 1}", "null", '{"n": }', "[" * 5000, '{"a":' * 2000])
    return Malformed(
        {"inputs": [TEXT, tensor("sampling_parameters", "BYTES", [text])]}, "sampling_parameters"
    )


def _wrong_type(rng: random.Random) -> Malformed:
    texts = ["text_input", "messages", "tools", "sampling_parameters", "request_id", "lora_name"]
    texts += ["stop_words", "bad_words"]
    name = rng.choice([*FLAGS, "input_ids", *texts])
    right = "BOOL" if name in FLAGS else "INT32" if name == "input_ids" else "BYTES"
    wrong = rng.choice([kind for kind in SOME_OF_EACH if kind != right])
    inputs = [tensor(name, wrong, [SOME_OF_EACH[wrong]])]
    if name not in {"text_input", "input_ids"}:
        inputs.append(TEXT)
    return Malformed({"inputs": inputs}, name)


def _wrong_shape(rng: random.Random) -> Malformed:
    name = rng.choice([*FLAGS, "sampling_parameters", "text_input", "messages", "tools"])
    count = rng.choice([2, 3, 17])
    value: Any = True if name in FLAGS else "{}"
    kind = "BOOL" if name in FLAGS else "BYTES"
    shape = rng.choice([[count], [count, 1], [1, count]])
    inputs = [tensor(name, kind, [value] * count, shape)]
    if name != "text_input":
        inputs.append(TEXT)
    return Malformed({"inputs": inputs}, name)


def _masked_text(rng: random.Random) -> Malformed:
    """The server counts inputs; an optional one must not stand in for the prompt."""
    flags = rng.sample(FLAGS[1:-1], rng.randint(1, 4))
    return Malformed({"inputs": [tensor(flag, "BOOL", [True]) for flag in flags]}, "text_input")


def _bad_ids(rng: random.Random) -> Malformed:
    ids = [rng.choice([-1, -(2**31), 2**31 - 1, 10**6]) for _ in range(rng.randint(1, 4))]
    return Malformed({"inputs": [tensor("input_ids", "INT32", ids)]}, "prompt_token_ids[0]")


def _unknown_tensor(rng: random.Random) -> Malformed:
    name = rng.choice(["prompt", "images", "text_inputs", "x" * 300])
    if rng.random() < 0.5:
        return Malformed({"inputs": [TEXT, tensor(name, "BYTES", ["x"])]}, name)
    return Malformed({"inputs": [TEXT], "outputs": [{"name": name}]}, name)


def _contradiction(rng: random.Random) -> Malformed:
    return rng.choice(
        [
            Malformed({"inputs": [TEXT, tensor("input_ids", "INT32", [5])]}, "input_ids"),
            Malformed({"inputs": [TEXT, tensor("messages", "BYTES", ["[]"])]}, "messages"),
            Malformed({"inputs": [TEXT], "parameters": {"tool_choice": "required"}}, "tool_choice"),
            Malformed({"inputs": [TEXT], "parameters": {"continue_final_message": True}}, "messages"),
            Malformed({"inputs": [TEXT, tensor("stream", "BOOL", [True])]}, "stream"),
            Malformed({"inputs": [tensor("text_input", "BYTES", [""])]}, "text_input"),
            Malformed({"inputs": [TEXT, tensor("cancel", "BOOL", [True])]}, "request_id"),
            Malformed({"inputs": [TEXT, tensor("bad_words", "BYTES", ["", "   "])]}, "bad_words"),
            Malformed({"inputs": [TEXT], "parameters": {"bad_words": "   "}}, "bad_words"),
            Malformed({"inputs": [TEXT], "parameters": {"end_id": -1}}, "end_id"),
            Malformed({"inputs": [TEXT], "parameters": {"beam_width": 4, "top_k": 3}}, "beam_width"),
            Malformed({"inputs": [TEXT], "parameters": {"return_log_probs": 1}}, "return_log_probs"),
            Malformed({"inputs": [TEXT], "parameters": {"load_lora": True}}, "enable_lora_control"),
            Malformed({"inputs": [TEXT], "parameters": {"lora_path": "/"}}, "load_lora"),
            Malformed({"inputs": [TEXT], "parameters": {"list_loras": "yes"}}, "list_loras"),
            Malformed({"inputs": [tensor("text_input", "BYTES", ["long " * 5000])]}, "max_model_len"),
        ]
    )


def _bad_messages(rng: random.Random) -> Malformed:
    text = rng.choice(["{", "{}", "5", "[]", "[1]", '[{"content": "x"}]', "[" * 3000, '[{"role": 1}]', ""])
    return Malformed({"inputs": [tensor("messages", "BYTES", [text])]}, "messages")


KINDS: tuple[Callable[[random.Random], Malformed], ...] = (
    _bad_sampling,
    _bad_sampling,
    _bad_parameter,
    _bad_json,
    _wrong_type,
    _wrong_shape,
    _masked_text,
    _bad_ids,
    _unknown_tensor,
    _bad_messages,
    _contradiction,
)


def malformed_request(rng: random.Random) -> Malformed:
    """One that a server must answer with status 400 and its name."""
    return rng.choice(KINDS)(rng)
