"""What can be given is written in the signatures; what cannot is named, in a line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM, EngineConfig, LLMEngine, SamplingParams, StructuredOutputsParams


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, max_model_len=64)


def refused(pattern: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(TypeError, match=pattern) as error:
        call(*args, **kwargs)
    assert len(str(error.value)) < 160
    assert "\n" not in str(error.value)


def test_a_misspelt_argument_is_named_with_the_nearest(llm: LLM, demo_model: Path) -> None:
    refused(
        "SamplingParams has no argument 'max_token'; did you mean 'max_tokens'?", SamplingParams, max_token=3
    )
    refused("no argument 'max_modle_len'; did you mean 'max_model_len'", LLM, demo_model, max_modle_len=10)
    refused(
        "no argument 'gpu_memory_utilisation'; did you mean 'gpu_memory_utilization'",
        LLMEngine,
        demo_model,
        gpu_memory_utilisation=0.5,
    )
    refused(
        r"LLM.generate has no argument 'priorities'; did you mean 'priority'",
        llm.generate,
        "a",
        priorities=[1],
    )
    refused(
        "LLM.stream has no argument 'sampling_parms'; did you mean 'sampling_params'",
        llm.stream,
        "a",
        sampling_parms=None,
    )
    refused("SamplingParams has no argument 'xyz'; see help", SamplingParams, xyz=3)
    refused("SamplingParams takes keyword arguments only", SamplingParams, 0.5)


def test_a_value_of_another_type_is_named(demo_model: Path) -> None:
    refused(r"max_tokens must be int \| None, got '5' \(str\)", SamplingParams, max_tokens="5")
    refused(r"temperature must be float, got 'hot' \(str\)", SamplingParams, temperature="hot")
    refused(r"seed must be int \| None, got 1.5 \(float\)", SamplingParams, seed=1.5)
    refused(r"stop must be .*, got 5 \(int\)", SamplingParams, stop=5)
    refused(r"max_num_seqs must be int \| None, got 'many' \(str\)", LLM, demo_model, max_num_seqs="many")
    params = SamplingParams()
    refused(r"top_k must be int, got 'x' \(str\)", setattr, params, "top_k", "x")


def test_a_name_that_is_no_text_is_named() -> None:
    for key in (1, None, b"json"):
        refused(
            "the name of an argument of structured_outputs must be str, got ",
            SamplingParams,
            structured_outputs={key: "x"},
        )
    unreadable: dict[str, Any] = {"\ud800": 1}
    with pytest.raises(ValueError, match="argument of SamplingParams must be valid Unicode"):
        SamplingParams(**unreadable)
    with pytest.raises(ValueError, match="argument of EngineConfig must be valid Unicode"):
        EngineConfig("model", **unreadable)


def test_what_is_no_json_is_named() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    refused("^extra_args: Object of type object", SamplingParams, extra_args={"a": object()})
    refused(r"^structured_outputs\.json: ", SamplingParams, structured_outputs={"json": {"a": object()}})
    with pytest.raises(ValueError, match=r"^extra_args: Out of range"):
        SamplingParams(extra_args={"a": float("nan")})
    with pytest.raises(ValueError, match=r"^structured_outputs\.json: Circular"):
        SamplingParams(structured_outputs={"json": circle})
    params = SamplingParams()
    with pytest.raises(ValueError, match=r"^extra_args: Out of range"):
        params.extra_args = {"a": float("inf")}


def test_none_is_taken_where_vllm_takes_it(llm: LLM, demo_model: Path) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=None,
        stop=None,
        stop_token_ids=None,
        logit_bias=None,
        seed=None,
        logprobs=None,
        top_p=None,
        ignore_eos=True,
    )
    assert params.max_tokens is None
    assert (params.stop, params.stop_token_ids, params.logit_bias) == ([], [], {})
    assert params.top_p == 1.0
    (output,) = llm.generate("Once", params, use_tqdm=False)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 64
    params.stop = ["x"]
    params.stop = params.logit_bias = params.stop_token_ids = None
    params.max_tokens = 3
    assert params == SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    same = LLM(
        demo_model, max_model_len=None, seed=None, block_size=None, kv_arena=None, async_scheduling=None
    )
    assert same.model.max_model_len == LLM(demo_model).model.max_model_len


def test_numbers_may_be_numpys() -> None:
    ids: Any = np.array([1, 2])
    numbers: dict[str, Any] = {
        "max_tokens": np.int64(5),
        "temperature": np.float32(0.5),
        "seed": np.uint8(3),
        "stop_token_ids": ids,
    }
    params = SamplingParams(**numbers)
    assert params == SamplingParams(max_tokens=5, temperature=0.5, stop_token_ids=[1, 2], seed=3)


def test_signatures_can_be_read() -> None:
    params = inspect.signature(SamplingParams).parameters
    assert list(params)[:3] == ["temperature", "top_k", "top_p"]
    assert params["max_tokens"].default == 16
    assert params["top_p"].kind is inspect.Parameter.KEYWORD_ONLY
    for name, parameter in params.items():
        assert getattr(SamplingParams(), name) == parameter.default, name
    for engine in (LLM, LLMEngine):
        arguments = inspect.signature(engine).parameters
        assert arguments["model"].default == "quire-demo"
        assert arguments["block_size"].default == 16
        assert "self" not in arguments and "engine_args" not in arguments
    assert "deadline_ms" in inspect.signature(LLM.generate).parameters
    for documented in (
        LLM,
        LLMEngine,
        LLM.generate,
        LLM.chat,
        LLM.stream,
        SamplingParams,
        LLMEngine.add_request,
    ):
        assert documented.__doc__


def test_what_is_wrong_within_structured_outputs_is_named_with_its_place() -> None:
    def outputs(**fields: Any) -> SamplingParams:
        return SamplingParams(structured_outputs=fields)

    refused(r"^structured_outputs.json must be .*, got 5 \(int\)", outputs, json=5)
    refused(r"^structured_outputs.choice must be .*, got \['a', 5\]", outputs, choice=["a", 5])
    refused(r"^structured_outputs.json_object must be bool, got 'x' \(str\)", outputs, json_object="x")
    refused(r"structured_outputs has no argument 'jsn'; did you mean 'json'\?", outputs, jsn="{}")
    refused(r"^json must be .*, got 5 \(int\)", StructuredOutputsParams, json=5)


def test_a_configuration_makes_engines(demo_model: Path) -> None:
    config = EngineConfig(demo_model, max_model_len=32, max_num_seqs=3)
    assert (config.model, config.max_model_len) == (str(demo_model), 32)
    params = SamplingParams(temperature=0, max_tokens=4)
    llm, engine = LLM.from_config(config), LLMEngine.from_config(config)
    assert llm.model == engine.model and llm.model.max_model_len == 32
    engine.add_request("0", "Once", params, add_special_tokens=False, queue_timeout_ms=60_000)
    while not (outputs := engine.step())[-1:] or not outputs[-1].finished:
        pass
    [output] = llm.generate("Once", params, use_tqdm=False, add_special_tokens=False)
    assert output.outputs[0].token_ids == outputs[-1].outputs[0].token_ids
    refused("EngineConfig has no argument 'max_len'; did you mean", EngineConfig, demo_model, max_len=3)
    refused(r"^model must be str, got 5 \(int\)", EngineConfig, 5)
    assert "max_model_len" in inspect.signature(EngineConfig).parameters


def test_how_a_request_is_served_is_said_to_every_call(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    prompt = list(range(100, 140))
    messages = [{"role": "user", "content": "Tell me a story about the old lighthouse by the sea."}]

    def cached(salt: str) -> int:
        return llm.generate([prompt], params, use_tqdm=False, cache_salt=salt)[0].num_cached_tokens

    assert [cached("a"), cached("a"), cached("b"), cached("b")] == [0, 32, 0, 32]
    [streamed] = [o for o in llm.stream(prompt, params, cache_salt="c") if o.finished]
    assert streamed.num_cached_tokens == 0
    llm.chat(messages, params, use_tqdm=False, cache_salt="a")
    [answer] = llm.chat(messages, params, use_tqdm=False, cache_salt="b")
    assert answer.num_cached_tokens == 0
    llm.pause()
    try:
        [waited] = llm.generate("Once", params, use_tqdm=False, queue_timeout_ms=30)
        assert (waited.outputs[0].finish_reason, waited.outputs[0].token_ids) == ("abort", [])
        *_, last = llm.stream("Once", params, queue_timeout_ms=30)
        assert last.outputs[0].finish_reason == "abort"
    finally:
        llm.resume()
    with pytest.raises(ValueError, match="cache_salt has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], params, use_tqdm=False, cache_salt=["a"])
