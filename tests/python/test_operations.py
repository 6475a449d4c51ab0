"""Deadlines, queue caps, pausing, draining, KV events and the flight recorder, from Python."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from quire import LLM, KVCacheEventKind, LLMEngine, PauseMode, SamplingParams
from quire.cli import main

LONG = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


def test_a_request_ends_when_its_deadline_passes(demo_model: Path) -> None:
    llm = LLM(demo_model)
    late, in_time = llm.generate(
        ["Once upon", "Once"], [LONG, SHORT], use_tqdm=False, deadline_ms=[40, 60_000]
    )
    assert late.outputs[0].finish_reason == "abort"
    assert len(late.outputs[0].token_ids) < 400
    assert in_time.outputs[0].finish_reason == "length"
    stats = llm.stats()
    assert stats.num_expired_reqs == 1
    assert stats.num_free_blocks == stats.num_total_blocks


def test_what_cannot_meet_its_deadline_is_refused_with_the_prediction(demo_model: Path) -> None:
    llm = LLM(demo_model, max_num_batched_tokens=64, max_num_seqs=2)
    llm.generate(["The baker said " * 30] * 4, SHORT, use_tqdm=False)  # how long a step takes is known now
    with pytest.raises(MemoryError, match=r"deadline_ms 1 cannot be met: .* predicted in \d+ ms"):
        llm.generate(["The baker said " * 60] * 8, SHORT, use_tqdm=False, deadline_ms=1)
    assert llm.stats().num_waiting_reqs == 0
    with pytest.raises(ValueError, match="deadline_ms must be at least 1, or 0 for no deadline, got -5"):
        llm.generate("x", SHORT, use_tqdm=False, deadline_ms=-5)


def test_prompts_beyond_max_queued_tokens_are_refused(demo_model: Path) -> None:
    engine = LLMEngine(demo_model, max_queued_tokens=100)
    engine.add_request("a", [5] * 60, SHORT)
    with pytest.raises(MemoryError, match=r"60 tokens, 50 more would exceed max_queued_tokens 100"):
        engine.add_request("b", [5] * 50, SHORT)
    engine.add_request("c", [5] * 40, SHORT)
    while engine.has_unfinished_requests():
        engine.step()
    engine.add_request("b", [5] * 50, SHORT)


def test_a_paused_engine_computes_nothing_and_loses_nothing(demo_model: Path) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("a", "Once", SHORT)
    engine.step()
    engine.pause(PauseMode.WAIT)
    engine.add_request("b", "Twice", SHORT)
    finished = {o.request_id for _ in range(10) for o in engine.step() if o.finished}
    assert finished == {"a"}  # what ran goes on, what waits does not begin
    engine.pause()
    steps = engine.stats().num_steps
    for _ in range(5):
        assert engine.step() == []
    assert engine.stats().num_steps == steps
    engine.resume()
    finished = {o.request_id for _ in range(10) for o in engine.step() if o.finished}
    assert finished == {"b"}


def test_aborts_of_unknown_requests_are_ignored_and_counted(demo_model: Path) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("a", "Once", SHORT)
    assert engine.abort_request("b") is False
    assert engine.abort_request("a") is True
    assert engine.abort_request("a") is False
    assert engine.stats().num_unknown_aborts == 2
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.stats().num_free_blocks == engine.stats().num_total_blocks


def test_drain_finishes_what_is_there_and_refuses_the_rest(demo_model: Path) -> None:
    llm = LLM(demo_model)
    done: list[str] = []

    def generate() -> None:
        params = SamplingParams(max_tokens=1900, ignore_eos=True)
        done.append(llm.generate("Once upon", params, use_tqdm=False)[0].outputs[0].finish_reason or "")

    thread = threading.Thread(target=generate)
    thread.start()
    while llm.stats().num_running_reqs == 0 and thread.is_alive():
        time.sleep(0.001)
    assert llm.drain(0.0) is False
    with pytest.raises(MemoryError, match="draining"):
        llm.generate("x", SHORT, use_tqdm=False)
    assert llm.drain() is True
    thread.join()
    assert done == ["length"]
    llm.resume()
    assert llm.generate("x", SHORT, use_tqdm=False)[0].finished


def test_kv_events_name_what_can_be_found(demo_model: Path) -> None:
    llm = LLM(
        demo_model, enable_kv_cache_events=True, max_model_len=64, num_gpu_blocks_override=5, max_num_seqs=4
    )
    prompt = list(range(5, 42))  # two full blocks of 16, and a part
    llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    (stored,) = llm.take_kv_events()
    assert stored.kind == KVCacheEventKind.BLOCK_STORED
    assert stored.token_ids == prompt[:32]
    assert len(stored.block_hashes) == 2
    assert (stored.lora_id, stored.lora_name, stored.cache_salt) == (0, "", "")
    assert (stored.kv_cache_spec_kind, stored.kv_cache_spec_sliding_window) == ("full_attention", 0)
    assert llm.take_kv_events() == []
    llm.generate([[7] * 50], SamplingParams(max_tokens=1), use_tqdm=False)  # needs all four blocks
    removed = [
        h for e in llm.take_kv_events() if e.kind == KVCacheEventKind.BLOCK_REMOVED for h in e.block_hashes
    ]
    assert sorted(removed) == sorted(stored.block_hashes)
    assert llm.reset_prefix_cache()
    llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    kinds = [event.kind for event in llm.take_kv_events()]
    assert kinds == [KVCacheEventKind.ALL_BLOCKS_CLEARED, KVCacheEventKind.BLOCK_STORED]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_recording_replays_exactly_and_becomes_a_timeline(
    demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asynchronous: bool
) -> None:
    llm = LLM(
        demo_model,
        max_model_len=128,
        num_gpu_blocks_override=16,
        max_num_seqs=8,
        async_scheduling=asynchronous,
        flight_recorder_bytes=1 << 17,  # small: the oldest segments are dropped on the way
    )
    params = SamplingParams(max_tokens=30, temperature=1.0, ignore_eos=True)  # too long for the memory
    for round in range(12):
        llm.generate([f"{round} The baker said {i}" for i in range(12)], params, use_tqdm=False)
    assert llm.stats().num_preemptions > 0
    recording, trace = tmp_path / "a.rec", tmp_path / "a.json"
    llm.dump_flight_recorder(recording)
    assert b"baker" not in recording.read_bytes()
    assert main(["replay", str(recording)]) == 0
    assert "steps scheduled as recorded" in capsys.readouterr().out
    assert main(["trace", str(recording), "--output", str(trace)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X", "C", "b", "e"}
    names = {event["name"] for event in events if event.get("cat") == "request"}
    assert names >= {"queued", "prefill", "decode", "finished: length"}

    damaged = tmp_path / "damaged.rec"
    damaged.write_bytes(recording.read_bytes()[:-3])
    assert main(["replay", str(damaged)]) == 1
    assert "at offset" in capsys.readouterr().err
    assert main(["replay", str(demo_model / "config.json")]) == 1
    assert "not a recording" in capsys.readouterr().err


def test_a_signal_writes_a_recording(demo_model: Path, tmp_path: Path) -> None:
    llm = LLM(demo_model, flight_recorder_dir=str(tmp_path), flight_recorder_signal=int(signal.SIGUSR2))
    llm.generate("Once", SHORT, use_tqdm=False)
    os.kill(os.getpid(), signal.SIGUSR2)
    end = time.monotonic() + 60
    while not list(tmp_path.glob("*.rec")) and time.monotonic() < end:
        time.sleep(0.01)
    (recording,) = tmp_path.glob("*.rec")
    assert main(["replay", str(recording)]) == 0
    del llm


def test_without_a_recorder_there_is_nothing_to_dump(demo_model: Path, tmp_path: Path) -> None:
    llm = LLM(demo_model, flight_recorder_bytes=0)
    with pytest.raises(ValueError, match="flight_recorder_bytes is 0"):
        llm.dump_flight_recorder(tmp_path / "a.rec")


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 32},  # fewer than requests at once would be
        {"max_model_len": 64, "num_gpu_blocks_override": 21},  # as are blocks
        {"max_num_seqs": 3000},  # more than tokens would be
    ],
)
def test_what_is_left_open_of_a_step_fits_what_is_not(demo_model: Path, options: dict[str, int]) -> None:
    llm = LLM(demo_model, device="cpu", **options)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    outputs = llm.generate([[5 + i] for i in range(100)], params, use_tqdm=False)
    assert {len(output.outputs[0].token_ids) for output in outputs} == {4}


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (
            {"max_num_batched_tokens": 8, "max_num_seqs": 8},
            "max_num_batched_tokens 8 is less than block_size 16",
        ),
        (
            {"max_num_batched_tokens": 32, "max_num_seqs": 64},
            "max_num_batched_tokens 32 is less than max_num_seqs 64",
        ),
        ({"long_prefill_token_threshold": 4096}, "long_prefill_token_threshold 4096 is above"),
        ({"max_num_partial_prefills": 100}, "max_num_partial_prefills 100 is above max_num_seqs 64"),
        ({"max_long_partial_prefills": 1}, "max_long_partial_prefills 1 needs long_prefill_token_threshold"),
        (
            {"max_model_len": 64, "num_gpu_blocks_override": 21, "max_num_seqs": 64},
            "max_num_seqs 64 is more than .* 20 blocks",
        ),
        ({"scheduling_policy": "lifo"}, "'fcfs', 'priority', 'cache_aware' or 'fair', got 'lifo'"),
        ({"watermark": 1.5}, "watermark must be at least 0 and below 1, got 1.5"),
        ({"flight_recorder_bytes": 5}, "flight_recorder_bytes must be at least 65536"),
    ],
)
def test_contradictions_are_refused_by_name_and_value(
    demo_model: Path, options: dict[str, int], pattern: str
) -> None:
    with pytest.raises(ValueError, match=pattern):
        LLM(demo_model, **options)
