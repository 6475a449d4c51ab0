"""What can be given is written in the signatures; what cannot is named, in a line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM, LLMEngine, SamplingParams


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
    refused(r"max_num_seqs must be int, got 'many' \(str\)", LLM, demo_model, max_num_seqs="many")
    params = SamplingParams()
    refused(r"top_k must be int, got 'x' \(str\)", setattr, params, "top_k", "x")


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
