"""When things happened to a request, and whether the engine is alive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from quire import LLM, LLMEngine, RequestMetrics, SamplingParams

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def assert_in_order(*times: float) -> None:
    assert list(times) == sorted(times)


def test_an_output_says_when_things_happened(demo_model: Path) -> None:
    llm = LLM(demo_model)
    before = time.monotonic()
    (output,) = llm.generate("Once upon a time", PARAMS, use_tqdm=False)
    after = time.monotonic()
    m = output.metrics
    assert isinstance(m, RequestMetrics)
    assert_in_order(
        before, m.arrival_time, m.first_scheduled_time, m.first_token_time, m.last_token_time, after
    )
    assert m.first_token_time < m.last_token_time
    assert m.num_generation_tokens == 6
    assert repr(m).startswith("RequestMetrics(arrival_time=")
    with pytest.raises(AttributeError):
        m.arrival_time = 0.0  # type: ignore[misc]


def test_timings_grow_with_the_stream(demo_model: Path) -> None:
    metrics = [output.metrics for output in LLM(demo_model).stream("Once upon a time", PARAMS)]
    assert metrics[-1].num_generation_tokens == 6
    assert {m.first_token_time for m in metrics} == {metrics[0].first_token_time}
    assert_in_order(*(m.last_token_time for m in metrics))


def test_what_did_not_happen_is_zero(demo_model: Path) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("a", "Once", PARAMS)
    engine.abort_request("a")
    (output,) = engine.step()
    assert output.metrics.arrival_time > 0
    assert output.metrics.first_scheduled_time == 0
    assert output.metrics.first_token_time == 0
    assert output.metrics.last_token_time == 0
    assert output.metrics.num_generation_tokens == 0


def test_an_engine_that_is_alive_has_no_dead_error(demo_model: Path) -> None:
    assert LLM(demo_model).dead_error == ""
    assert LLMEngine(demo_model).dead_error == ""
