"""LLM and LLMEngine on the demo model: order, batches, stops, log-probabilities, lifetimes."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from quire import LLM, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from quire.prompts import Prompt

PROMPTS = [
    "Once upon a time",
    "The baker of the town",
    "1 2 3 4",
    "A list of fruits:",
    "She said that",
    "In the morning the old fisherman",
]


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model)


def greedy(max_tokens: int = 24, **changes: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **changes)  # type: ignore[arg-type]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_outputs_come_in_the_prompts_order(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, [greedy(n) for n in (24, 3, 18, 1, 12, 6)], use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    assert all(output.finished for output in outputs)
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        alone = llm.generate(prompt, greedy(), use_tqdm=False)[0].outputs[0]
        together = output.outputs[0]
        assert alone.token_ids[: len(together.token_ids)] == together.token_ids


def test_prompts_may_be_text_ids_or_dictionaries(llm: LLM, demo_model: Path) -> None:
    from quire import Tokenizer

    ids = Tokenizer(str(demo_model)).encode(PROMPTS[0])
    prompts: list[Prompt] = [PROMPTS[0], ids, {"prompt": PROMPTS[0]}, {"prompt_token_ids": ids}]
    outputs = llm.generate(prompts, greedy(), use_tqdm=False)
    assert len({tuple(t) for t in tokens(outputs)}) == 1
    assert tokens(llm.generate(ids, greedy(), use_tqdm=False)) == tokens(outputs[:1])
    assert outputs[1].prompt_token_ids == ids
    assert outputs[1].prompt is None


def test_a_tiny_cache_preempts_and_changes_nothing(demo_model: Path, llm: LLM) -> None:
    """Greedy outputs under preemption, small chunks and shared prefixes equal one request at a time."""
    prompts = [f"{prompt} {'and then ' * (10 * i)}" for i, prompt in enumerate(PROMPTS)] * 2
    params = greedy(60, ignore_eos=True)
    expected = [tokens(llm.generate(prompt, params, use_tqdm=False))[0] for prompt in prompts]
    for options in (
        {},
        {"async_scheduling": True},
        {"enable_prefix_caching": False},
        {"scheduling_policy": "priority"},
    ):
        small = LLM(
            demo_model,
            max_model_len=256,
            num_gpu_blocks_override=20,
            max_num_batched_tokens=48,
            max_num_seqs=16,
            **options,
        )
        outputs = small.generate(prompts, params, use_tqdm=False, priority=[-i for i in range(len(prompts))])
        assert tokens(outputs) == expected, options
        stats = small.stats()
        assert stats.num_preemptions > 0, options
        assert stats.num_free_blocks == stats.num_total_blocks, options


def test_logits_are_bitwise_equal_in_any_company(llm: LLM) -> None:
    """Batch-invariant: log-probabilities do not change by one bit, whatever else runs."""
    params = greedy(16, logprobs=5)
    alone = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in PROMPTS]
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    for a, b in zip(alone, together, strict=True):
        first, second = a.outputs[0].logprobs, b.outputs[0].logprobs
        assert first is not None and second is not None
        values = [[(i, p.logprob) for i, p in position.items()] for position in first]
        assert values == [[(i, p.logprob) for i, p in position.items()] for position in second]


def test_two_ranks_generate_what_one_does(demo_model: Path) -> None:
    one = LLM(demo_model, dtype="float32").generate(PROMPTS, greedy(), use_tqdm=False)
    two = LLM(demo_model, dtype="float32", tensor_parallel_size=2).generate(PROMPTS, greedy(), use_tqdm=False)
    assert tokens(one) == tokens(two)


def test_prefixes_are_shared_and_reported(demo_model: Path) -> None:
    llm = LLM(demo_model)
    prompt = " ".join(PROMPTS * 4)
    first, second = (llm.generate(prompt, greedy(), use_tqdm=False)[0] for _ in range(2))
    assert first.num_cached_tokens == 0
    length = len(second.prompt_token_ids)
    assert second.num_cached_tokens == (length - 1) // 16 * 16 > 0
    assert tokens([first]) == tokens([second])
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, greedy(), use_tqdm=False)[0].num_cached_tokens == 0


def test_streams_are_deltas_that_join_to_the_whole(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], greedy(60), use_tqdm=False)[0].outputs[0]
    # A machine that is busy elsewhere may join all the deltas of one stream, hardly those of ten.
    streams = ([output.outputs[0] for output in llm.stream(PROMPTS[0], greedy(60))] for _ in range(10))
    pieces = next(pieces for pieces in streams if len(pieces) > 1)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert pieces[-1].finish_reason == whole.finish_reason


def test_closing_a_stream_aborts_its_request(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], greedy(1500, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while llm.stats().num_running_reqs and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = llm.stats()
    assert stats.num_running_reqs == 0
    assert stats.num_free_blocks == stats.num_total_blocks


def test_stop_strings_and_ids_end_the_text(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], greedy(60), use_tqdm=False)[0].outputs[0]
    stop = whole.text[20:26]
    stopped = llm.generate(PROMPTS[0], greedy(60, stop=stop), use_tqdm=False)[0].outputs[0]
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    kept = llm.generate(PROMPTS[0], greedy(60, stop=[stop], include_stop_str_in_output=True), use_tqdm=False)[
        0
    ].outputs[0]
    assert kept.text == stopped.text + stop
    shown = "".join(o.outputs[0].text for o in llm.stream(PROMPTS[0], greedy(60, stop=stop)))
    assert shown == stopped.text

    fifth = whole.token_ids[4]
    by_id = llm.generate(PROMPTS[0], greedy(60, stop_token_ids=[fifth]), use_tqdm=False)[0].outputs[0]
    assert by_id.token_ids == whole.token_ids[: whole.token_ids.index(fifth) + 1]
    assert (by_id.finish_reason, by_id.stop_reason) == ("stop", fifth)


def test_end_of_sequence_min_tokens_and_ignore_eos(llm: LLM) -> None:
    prompt = llm.apply_chat_template([{"role": "user", "content": "Hello!"}])
    ended = llm.generate(prompt, greedy(200), use_tqdm=False)[0].outputs[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    assert ended.token_ids[-1] in llm.model.eos_token_ids
    length = len(ended.token_ids)
    longer = llm.generate(prompt, greedy(200, min_tokens=length + 5), use_tqdm=False)[0].outputs[0]
    assert len(longer.token_ids) >= length + 5
    assert not set(longer.token_ids[: length + 4]) & set(llm.model.eos_token_ids)
    on = llm.generate(prompt, greedy(length + 9, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert len(on.token_ids) == length + 9
    assert on.finish_reason == "length"


def test_max_model_len_ends_what_max_tokens_does_not(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=40)
    output = llm.generate(PROMPTS[0], greedy(1000, ignore_eos=True), use_tqdm=False)[0]
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 40
    assert output.outputs[0].finish_reason == "length"


def test_n_completions_share_the_prompt(demo_model: Path) -> None:
    llm = LLM(demo_model)
    prompt = " ".join(PROMPTS * 2)
    params = SamplingParams(n=4, temperature=1.5, seed=5, max_tokens=12, logprobs=0, ignore_eos=True)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) > 1
    stats = llm.stats()
    assert stats.prefix_cache_hits >= 3 * ((len(output.prompt_token_ids) - 1) // 16 * 16) > 0
    # Completion i is what seed + i gives alone.
    for i, completion in enumerate(output.outputs):
        alone = SamplingParams(temperature=1.5, seed=5 + i, max_tokens=12, ignore_eos=True)
        assert llm.generate(prompt, alone, use_tqdm=False)[0].outputs[0].token_ids == completion.token_ids


def test_seeds_repeat_and_differ(llm: LLM) -> None:
    def sample(seed: int | None) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=30, ignore_eos=True)
        return llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].token_ids

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)


def test_an_engines_seed_makes_its_requests_repeat(demo_model: Path) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)

    def sample(seed: int) -> list[list[int]]:
        outputs = LLM(demo_model, seed=seed).generate(PROMPTS[:2], params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    assert sample(0) == sample(0)
    assert sample(0) != sample(1)


def test_logprobs_hold_the_chosen_token_and_the_likeliest(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=20, logprobs=3, ignore_eos=True)
    completion = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None and completion.cumulative_logprob is not None
    assert len(completion.logprobs) == len(completion.token_ids)
    total = 0.0
    for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
        chosen = next(iter(position.values()))
        assert chosen.token_id == token
        total += chosen.logprob
        top = sorted(position.values(), key=lambda p: p.rank)[:3]
        assert [p.rank for p in top] == [1, 2, 3]
        assert top[0].logprob >= top[1].logprob >= top[2].logprob
        assert sum(math.exp(p.logprob) for p in position.values()) <= 1 + 1e-5
    assert completion.cumulative_logprob == pytest.approx(total)


def test_chat_uses_the_models_template(llm: LLM) -> None:
    message = {"role": "user", "content": "Hello!"}
    text = llm.apply_chat_template([message])
    assert text.endswith("assistant\n") and "Hello!" in text
    expected = llm.generate(text, greedy(), use_tqdm=False)[0].outputs[0].text
    assert llm.chat([message], greedy(), use_tqdm=False)[0].outputs[0].text == expected
    several = llm.chat([[message], [message]], greedy(), use_tqdm=False)
    assert [output.outputs[0].text for output in several] == [expected] * 2


def test_progress_is_shown(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, greedy(2))
    assert f"{len(PROMPTS)}/{len(PROMPTS)}" in capsys.readouterr().err


def test_the_engine_steps_in_the_hosts_loop(demo_model: Path, llm: LLM) -> None:
    threads = threading.active_count(), psutil.Process().num_threads()
    engine = LLMEngine(demo_model, num_threads=1)
    assert (threading.active_count(), psutil.Process().num_threads()) == threads
    expected = llm.generate(PROMPTS, greedy(), use_tqdm=False)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, greedy())
    engine.add_request("gone", PROMPTS[0], greedy(500, ignore_eos=True))
    final: dict[str, RequestOutput] = {}
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                final[output.request_id] = output
        steps += 1
        if steps == 5:
            assert engine.abort_request("gone")
    assert not engine.abort_request("gone")
    assert [final[str(i)].outputs[0].token_ids for i in range(len(PROMPTS))] == tokens(expected)
    assert final["gone"].outputs[0].finish_reason == "abort"
    assert engine.step() == []
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


def test_cumulative_outputs_grow(demo_model: Path) -> None:
    engine = LLMEngine(demo_model)
    params = greedy(10, output_kind=RequestOutputKind.CUMULATIVE, ignore_eos=True)
    engine.add_request("a", PROMPTS[0], params)
    lengths = []
    while engine.has_unfinished_requests():
        lengths += [len(output.outputs[0].token_ids) for output in engine.step()]
    assert lengths == list(range(1, 11))


def test_several_engines_and_threads_in_one_process(demo_model: Path, llm: LLM) -> None:
    other = LLM(demo_model, dtype="float32")
    expected = [tokens(engine.generate(PROMPTS, greedy(), use_tqdm=False)) for engine in (llm, other)]
    results: dict[int, list[list[int]]] = {}

    def work(index: int) -> None:
        engine = (llm, other)[index % 2]
        results[index] = tokens(engine.generate(PROMPTS, greedy(), use_tqdm=False))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(6)] == expected * 3


def test_deleting_returns_memory_and_threads(demo_model: Path) -> None:
    process = psutil.Process()

    def load_and_run() -> None:
        llm = LLM(demo_model, kv_cache_memory_bytes=256 << 20)
        llm.generate(PROMPTS * 4, greedy(100, ignore_eos=True), use_tqdm=False)
        del llm
        gc.collect()

    load_and_run()
    threads, memory = process.num_threads(), process.memory_info().rss
    for _ in range(4):
        load_and_run()
    assert process.num_threads() == threads
    assert process.memory_info().rss < memory + (8 << 20)


def test_an_idle_engine_uses_no_cpu(demo_model: Path) -> None:
    llm = LLM(demo_model)
    llm.generate(PROMPTS, greedy(), use_tqdm=False)
    time.sleep(0.1)
    before = sum(os.times()[:2])
    time.sleep(1.0)
    assert sum(os.times()[:2]) - before < 0.05
    assert llm.stats().num_running_reqs == 0


CTRL_C = """
import os, signal, sys, threading, time
from quire import LLM, SamplingParams
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
llm = LLM(sys.argv[1])
params = SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True)
sent = []

def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

threading.Timer(0.5, interrupt).start()
try:
    llm.generate(["Once upon a time"] * 64, params, use_tqdm=False)
    sys.exit("was not interrupted")
except KeyboardInterrupt:
    waited = time.monotonic() - sent[0]
assert llm.stats().num_generation_tokens < 64 * 1000
while llm.stats().num_running_reqs:
    time.sleep(0.01)
stats = llm.stats()
assert stats.num_free_blocks == stats.num_total_blocks
again = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
assert again[0].finished
print(waited)
"""


def test_ctrl_c_returns_at_once_and_frees_everything(demo_model: Path) -> None:
    command = [sys.executable, "-c", CTRL_C, str(demo_model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 5
