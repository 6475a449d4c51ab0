"""What a request has used, and when: the same by every call, counted as tokens come."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import (
    LLM,
    BatchUpdate,
    LLMEngine,
    LogitsProcessor,
    LogitsProcessorConfig,
    RequestOutput,
    RequestUsage,
    SamplingParams,
)

START, END = [300, 301], [302, 303, 304]
OPTIONS: dict[str, Any] = {"think_start_token_ids": START, "think_end_token_ids": END, "max_model_len": 256}


class Says(LogitsProcessor):
    """Requests say what extra_args["says"] tells them to."""

    extra_arg_names = ("says",)

    def __init__(self, config: LogitsProcessorConfig) -> None:
        self.rows: list[Any] = []

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        rows = dict(enumerate(self.rows))
        for row, params, _, output in batch_update.added:
            rows[row] = params.extra_args["says"], output
        for source, target, _ in batch_update.moved:
            rows[source], rows[target] = rows.get(target), rows[source]
        self.rows = [rows[row] for row in range(batch_update.batch_size)]

    def apply(self, logits: Any) -> None:
        logits[:] = -np.inf
        for row, (says, output) in enumerate(self.rows):
            logits[row, says[len(output)]] = 0


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, logits_processors=[Says], **OPTIONS)


def saying(*tokens: int, **fields: Any) -> SamplingParams:
    fields = {"max_tokens": len(tokens), "ignore_eos": True, **fields}
    return SamplingParams(extra_args={"says": tokens}, **fields)


# Prompt, answer, and how many tokens of that are within a block.
CASES = [
    ([50, 60], [70, *START, 71, 72, 73, *END, 74], 3),
    ([50, *START], [71, 72, *END, 74], 2),
    ([50, 300], [301, 71, 72, *END, 74], 2),
    ([50, *START, 60], [71, 72, 73], 3),
    ([50, *START, 60], [71, 302, 303], 3),  # cut off in what might have been the end
    ([50, *START, 302, 303], [304, 71, 72], 0),  # ended by its first token
    ([50, *START, 60, *END], [71, 72, 73], 0),
    ([50], [71, *END, 72], 0),
    ([50], [*START, 1, 302, 303, 302, 303, 304, *START, *END, *START, 2], 4),
]


@pytest.mark.parametrize(("prompt", "answer", "expected"), CASES)
def test_tokens_of_reasoning_are_counted_as_they_come(
    llm: LLM, demo_model: Path, prompt: list[int], answer: list[int], expected: int
) -> None:
    params = saying(*answer)
    [output] = llm.generate([prompt], params, use_tqdm=False)
    assert output.outputs[0].token_ids == answer
    assert output.outputs[0].num_reasoning_tokens == output.usage.num_reasoning_tokens == expected
    assert output.usage.num_generation_tokens == len(answer)
    so_far = [part.usage.num_reasoning_tokens for part in llm.stream(prompt, params)]
    assert so_far == sorted(so_far) and so_far[-1] == expected
    engine = LLMEngine(demo_model, logits_processors=[Says], **OPTIONS)
    engine.add_request("a", prompt, params)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    counts = [part.usage.num_reasoning_tokens for part in outputs]
    assert counts == sorted(counts) and counts[-1] == expected


def test_what_follows_a_stop_string_is_not_counted(llm: LLM) -> None:
    [plain] = llm.generate([[50, *START]], saying(71, 72, 73, 74, *END), use_tqdm=False)
    text = plain.outputs[0].text
    [output] = llm.generate([[50, *START]], saying(71, 72, 73, 74, *END, stop=[text[:4]]), use_tqdm=False)
    assert output.outputs[0].stop_reason == text[:4]
    assert output.usage.num_generation_tokens == len(output.outputs[0].token_ids) < 7
    assert output.usage.num_reasoning_tokens == output.usage.num_generation_tokens


def by_every_call(llm: LLM, engine: LLMEngine, prompt: list[int], params: SamplingParams) -> Any:
    """The outputs of one request by each call, none of which finds a cached prefix of the others'."""
    outputs: list[list[RequestOutput]] = []
    for salt in ("first", "second"):
        outputs.append(llm.generate([prompt], params, use_tqdm=False, cache_salt=salt))
        llm.reset_prefix_cache()
    outputs.append(list(llm.stream(prompt, params)))
    llm.reset_prefix_cache()
    engine.add_request("a", prompt, params)
    outputs.append([])
    while engine.has_unfinished_requests():
        outputs[-1] += engine.step()
    engine.reset_prefix_cache()
    assert [parts[-1].finished for parts in outputs] == [True] * 4
    return outputs


@pytest.mark.parametrize("n", [1, 3])
def test_every_call_accounts_for_the_same_request_in_the_same_way(llm: LLM, demo_model: Path, n: int) -> None:
    prompt = [*range(100, 140), *START]
    params = saying(71, 72, 73, *END, 75, 76, n=n, logprobs=1, stop_token_ids=[75])
    engine = LLMEngine(demo_model, logits_processors=[Says], **OPTIONS)
    for parts in by_every_call(llm, engine, prompt, params):
        last = parts[-1]
        usage = last.usage
        assert (usage.num_prompt_tokens, usage.num_generation_tokens) == (42, 7 * n)
        assert (usage.num_reasoning_tokens, usage.num_cached_tokens) == (3 * n, last.num_cached_tokens)
        if n == 1:  # one completion may find what another one has just computed
            assert usage.num_cached_tokens == 0
        assert last.metrics.num_generation_tokens == usage.num_generation_tokens
        ends = {c.index: c for part in parts for c in part.outputs if c.finished()}
        assert sorted(ends) == list(range(n))
        for completion in ends.values():
            assert (completion.finish_reason, completion.stop_reason) == ("stop", 75)
            assert completion.num_reasoning_tokens == 3
            assert completion.cumulative_logprob == pytest.approx(ends[0].cumulative_logprob)


def test_what_was_cached_is_said_by_every_call(llm: LLM) -> None:
    params = saying(71, 72)
    prompt = [*range(100, 140)]
    for _ in range(2):
        [whole] = llm.generate([prompt], params, use_tqdm=False, cache_salt="cached")
    *_, streamed = llm.stream(prompt, params, cache_salt="cached")
    assert whole.usage == streamed.usage
    assert whole.usage.num_cached_tokens == 32


def test_times_are_those_between_what_happened(llm: LLM) -> None:
    [output] = llm.generate([[50, 60]], saying(*range(70, 90)), use_tqdm=False)
    m = output.metrics
    assert m.queued_time == m.first_scheduled_time - m.arrival_time >= 0
    assert m.prefill_time == m.first_token_time - m.first_scheduled_time > 0
    assert m.first_token_latency == m.first_token_time - m.arrival_time > 0
    assert m.decode_time == m.last_token_time - m.first_token_time > 0
    assert m.inference_time == m.last_token_time - m.first_scheduled_time > 0
    assert m.mean_time_per_output_token == pytest.approx(m.decode_time / 19)
    [one] = llm.generate([[50, 60]], saying(70), use_tqdm=False)
    assert (one.metrics.decode_time, one.metrics.mean_time_per_output_token) == (0, 0)
    [three] = llm.generate([[50, 60]], saying(*range(70, 90), n=3), use_tqdm=False)
    assert 0 < three.metrics.mean_time_per_output_token <= three.metrics.decode_time / 19 * 1.001


def test_what_did_not_happen_took_no_time(demo_model: Path) -> None:
    engine = LLMEngine(demo_model, **OPTIONS)
    engine.add_request("a", [5, 6, *START], SamplingParams())
    engine.abort_request("a")
    [output] = engine.step()
    m = output.metrics
    times = (m.queued_time, m.prefill_time, m.first_token_latency, m.decode_time, m.inference_time)
    assert times == (0, 0, 0, 0, 0) and m.mean_time_per_output_token == 0
    assert (output.usage.num_prompt_tokens, output.usage.num_generation_tokens) == (4, 0)


def test_usage_is_a_value(llm: LLM) -> None:
    [output] = llm.generate([[50, *START]], saying(71, 72), use_tqdm=False)
    assert isinstance(output.usage, RequestUsage)
    for same in (copy.copy(output), pickle.loads(pickle.dumps(output))):
        assert same == output and same.usage == output.usage and same.outputs == output.outputs
    shown = "num_prompt_tokens=3, num_cached_tokens=0, num_generation_tokens=2, num_reasoning_tokens=2"
    assert repr(output.usage) == f"RequestUsage({shown})"
