"""Outputs and parameters are values: pickled, copied, compared and printed, in and out of the process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, RequestOutputKind, SamplingParams

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, max_model_len=128, enable_kv_cache_events=True)


def values_of(llm: LLM) -> list[Any]:
    """One of each class, as the engine gives them."""
    params = SamplingParams(
        temperature=0.8, top_p=0.9, seed=3, max_tokens=20, logprobs=2, stop=[" "], n=2, logit_bias={5: 0.1}
    )
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    (ids,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None and output.outputs[0].stop_reason == " "
    return [
        params,
        output,
        ids,
        *output.outputs,
        output.metrics,
        next(iter(logprobs[0].values())),
        llm.stats(),
        llm.model,
        *llm.take_kv_events(),
    ]


def test_values_survive_pickle_and_copy(llm: LLM) -> None:
    values = values_of(llm)
    assert len(values) > 8
    for value in values:
        for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert again is not value
            assert type(again) is type(value)
            assert again == value
            assert repr(again) == repr(value)
            for name in dir(type(value)):
                if not name.startswith("_") and not callable(getattr(value, name)):
                    assert getattr(again, name) == getattr(value, name), name
        assert value != "something else"
        assert repr(value).startswith(type(value).__name__ + "(")


def test_values_that_differ_are_not_equal(llm: LLM) -> None:
    first, second = (
        llm.generate(PROMPT, SamplingParams(max_tokens=n + 1, ignore_eos=True), use_tqdm=False)[0]
        for n in range(2)
    )
    assert first != second
    assert first.outputs != second.outputs
    assert first.metrics != second.metrics
    assert SamplingParams(seed=1) != SamplingParams(seed=2)


def test_params_say_what_they_are() -> None:
    params = SamplingParams(temperature=0.8, stop="x", output_kind=RequestOutputKind.DELTA)
    text = repr(params)
    assert text.startswith("SamplingParams(temperature=0.8, top_k=0, ")
    assert "stop=['x']" in text and "output_kind=RequestOutputKind.DELTA" in text
    namespace = {"SamplingParams": SamplingParams, "RequestOutputKind": RequestOutputKind}
    assert eval(text, namespace) == params


def test_a_clone_is_independent() -> None:
    params = SamplingParams(stop=["a"], temperature=0.5)
    other = params.clone()
    assert other == params
    other.temperature = 0.7
    other.stop = "b"
    assert (params.temperature, params.stop) == (0.5, ["a"])
    assert other.stop == ["b"]


def test_a_pickle_with_a_value_out_of_range_is_refused() -> None:
    state = SamplingParams().__getstate__()
    assert isinstance(state, dict)
    with pytest.raises(ValueError, match="top_p"):
        SamplingParams.__new__(SamplingParams).__setstate__({**state, "top_p": 2.0})
