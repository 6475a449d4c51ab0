"""Values that nobody should give: each is refused in a line that names it, and the engine goes on."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM, LLMEngine, SamplingParams, Tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=2)
HUGE = 10**400  # whose repr is 400 characters
UNPRINTABLE = 10**5000  # whose repr Python refuses


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    llm = LLM(demo_model, max_model_len=64)
    yield llm
    assert llm.generate("hello", PARAMS, use_tqdm=False)[0].finished


@pytest.fixture(scope="module")
def engine(demo_model: Path) -> LLMEngine:
    return LLMEngine(demo_model, max_model_len=64)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


def refused(kind: type[Exception], pattern: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(kind, match=pattern) as error:
        call(*args, **kwargs)
    assert type(error.value) is kind
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_strings_that_are_no_text(llm: LLM, engine: LLMEngine, tokenizer: Tokenizer) -> None:
    def generate(prompts: Any, **options: Any) -> object:
        return llm.generate(prompts, PARAMS, use_tqdm=False, **options)

    lone = "ab\ud800"
    surrogate = r"must be valid Unicode; character 2 is the lone surrogate '\\ud800'"
    refused(ValueError, "prompts " + surrogate, generate, lone)
    refused(ValueError, r"prompts\[1\] " + surrogate, generate, ["a", lone])
    refused(ValueError, r"prompts\['prompt'\] " + surrogate, generate, {"prompt": lone})
    refused(ValueError, "user " + surrogate, generate, "a", user=lone)
    refused(ValueError, "prompt " + surrogate, lambda: next(llm.stream(lone)))
    refused(ValueError, "request_id " + surrogate, engine.add_request, lone, "a")
    refused(ValueError, "cache_salt " + surrogate, engine.add_request, "r", "a", cache_salt=lone)
    refused(TypeError, r"request_id must be a string, got 5 \(int\)", engine.abort_request, 5)
    refused(ValueError, "messages must be valid Unicode", llm.chat, [{"role": "user", "content": lone}])
    message = [{"role": "user", "content": "a"}]
    refused(ValueError, "chat_template " + surrogate, llm.chat, message, chat_template=lone)
    refused(TypeError, r"chat_template must be a string, got 5 \(int\)", llm.chat, message, chat_template=5)
    refused(ValueError, "text must be valid Unicode, got .* a lone surrogate", tokenizer.encode, lone)
    refused(ValueError, "token must be valid Unicode", tokenizer.token_to_id, lone)
    refused(TypeError, r"text must be str, got None \(NoneType\)", tokenizer.encode, None)


def test_numbers_that_are_too_large(llm: LLM, engine: LLMEngine, tokenizer: Tokenizer) -> None:
    for number in (2**31, -(2**63), HUGE, UNPRINTABLE):
        refused(ValueError, "priority must be from -2147483648 to", llm.generate, "a", priority=number)
        refused(ValueError, r"prompts\[0\] is .*; token ids are below", llm.generate, [number])
        refused(TypeError, "ids must be a sequence of token ids", tokenizer.decode, [number])
    for number in (2**31, -(2**63), HUGE, UNPRINTABLE):
        refused(ValueError, "top_k must be from -2147483648 to 2147483647, got", SamplingParams, top_k=number)
        refused(ValueError, "max_tokens must be from -2147483648 to", SamplingParams, max_tokens=number)
    refused(ValueError, "deadline_ms must be from", llm.generate, "a", deadline_ms=2**63)
    refused(ValueError, "priority must be from", engine.add_request, "r", "a", priority=2**31)
    refused(ValueError, "max_num_seqs must be from .* to 2147483647, got", LLM, max_num_seqs=2**31)
    refused(TypeError, "temperature must be float, got 1000", SamplingParams, temperature=HUGE)


def test_parameters_of_another_type(llm: LLM, engine: LLMEngine) -> None:
    for params in (5, "x", [5], {"temperature": 0}, NoRepr(), HUGE):
        refused(TypeError, "sampling_params must be SamplingParams.*, got", llm.generate, "a", params)
        refused(
            TypeError, "sampling_params must be SamplingParams, got", engine.add_request, "r", "a", params
        )
        refused(TypeError, "sampling_params must be SamplingParams, got", next, llm.stream("a", params))  # type: ignore[arg-type]
    message = [{"role": "user", "content": "a"}]
    refused(TypeError, r"tools must be a list of objects, got 5 \(int\)", llm.chat, message, tools=5)
    refused(TypeError, "chat_template_kwargs must be a mapping", llm.chat, message, chat_template_kwargs="x")
    refused(TypeError, "messages: Object of type bytes is not", llm.chat, [{"role": "user", "content": b"x"}])
    refused(ValueError, "messages: Out of range", llm.chat, [{"role": "user", "content": math.nan}])
    refused(TypeError, r"messages must be a list of messages .* got 5 \(int\)", llm.apply_chat_template, 5)
    refused(TypeError, r"mode must be PauseMode.KEEP or PauseMode.WAIT, got 'keep'", llm.pause, "keep")
    refused(TypeError, r"path must be a path, got b'x' \(bytes\)", llm.dump_flight_recorder, b"x")
    endless: list[Any] = []
    endless.append(endless)
    refused(ValueError, "messages: Circular", llm.chat, [{"role": "user", "content": endless}])


def test_how_long_a_drain_waits(llm: LLM) -> None:
    for forever in (None, math.inf, HUGE, 10**10, np.float16(1), np.int64(3), -1, -HUGE):
        assert llm.drain(forever)
        llm.resume()
    refused(ValueError, "timeout must be a number of seconds, got nan", llm.drain, math.nan)
    refused(TypeError, r"timeout must be a number of seconds, got '1' \(str\)", llm.drain, "1")


def test_names_that_are_no_directory(demo_model: Path) -> None:
    refused(TypeError, r"model must be a path, got None \(NoneType\)", LLM, None)
    refused(TypeError, "model must be a path, got b'x'", LLM, b"x")
    refused(TypeError, "model must be a path, got array", LLM, np.array(["a", "b"]))
    refused(ValueError, "model must be a path, .* holds a NUL character", LLM, "a\0b")
    refused(ValueError, "model must be valid Unicode", LLM, "\ud800")
    refused(ValueError, "model: no directory 'xxx", LLM, "x" * 100_000)
    refused(TypeError, r"directory must be str, got 5 \(int\)", Tokenizer, 5)
    refused(ValueError, "directory is empty", Tokenizer, "")
    assert Tokenizer(demo_model).vocab_size == Tokenizer(str(demo_model)).vocab_size


def test_whatever_a_file_holds_the_message_is_text(demo_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(demo_model, model)
    config = json.loads((model / "config.json").read_text())

    def message(**changes: Any) -> str:
        (model / "config.json").write_text(json.dumps(config | changes, ensure_ascii=False))
        with pytest.raises(ValueError, match=r"config\.json: ") as error:
            LLM(model)
        return str(error.value)

    assert "'hidden_size' must be a whole number" in message(hidden_size="x" + "é" * 100)
    assert "is not supported; supported: " in message(architectures=["字" * 100_000])
    assert len(message(architectures=["字" * 100_000])) < 2100
    assert message(hidden_act="a\nb\0c").endswith(
        r"'hidden_act' 'a\nb\x00c' is not supported; supported: silu, swish, gelu, gelu_pytorch_tanh, "
        "gelu_new, gelu_fast, relu, relu2"
    )
