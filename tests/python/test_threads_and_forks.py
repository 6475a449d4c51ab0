"""Threads on one engine, forks of its process, and that process's end."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from quire import LLM, LLMEngine, SamplingParams


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_threads_share_one_llm_engine(demo_model: Path) -> None:
    prompts = [[5 + i, 6, 7 + i] for i in range(24)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = [o.outputs[0].token_ids for o in LLM(demo_model).generate(prompts, params, use_tqdm=False)]
    engine = LLMEngine(demo_model, max_num_seqs=8)
    given: dict[str, list[int]] = {}
    num_added = 0
    failures: list[BaseException] = []

    def work(first: int) -> None:
        nonlocal num_added
        try:
            for i in range(first, len(prompts), 4):
                engine.add_request(str(i), prompts[i], params)
                engine.abort_request("not there")
                num_added += 1
                for output in engine.step():
                    if output.finished:
                        given[output.request_id] = output.outputs[0].token_ids
                assert engine.stats().num_running_reqs <= 8
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        given[output.request_id] = output.outputs[0].token_ids
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [given[str(i)] for i in range(len(prompts))] == expected
    assert engine.stats().num_free_blocks == engine.stats().num_total_blocks


FORK = """
import os, sys
from quire import LLM, LLMEngine, SamplingParams
params = SamplingParams(max_tokens=4)
llm, engine = LLM(sys.argv[1]), LLMEngine(sys.argv[1])
llm.generate("a", params, use_tqdm=False)
engine.add_request("0", "a", params)
stream = llm.stream("a", SamplingParams(max_tokens=1000, ignore_eos=True))
next(stream)
child = os.fork()
if child == 0:
    calls = [
        lambda: llm.generate("a", params, use_tqdm=False), lambda: next(stream), llm.stats, llm.drain,
        llm.reset_prefix_cache, llm.pause, llm.resume, llm.take_kv_events, lambda: llm.dead_error,
        lambda: llm.apply_chat_template([{"role": "user", "content": "a"}]),
        lambda: llm.dump_flight_recorder("/nonexistent/a.rec"),
        lambda: engine.add_request("1", "a"), engine.step, lambda: engine.abort_request("0"),
        engine.has_unfinished_requests,
    ]
    for i, call in enumerate(calls):
        try:
            call()
            sys.exit(f"call {i} returned")
        except RuntimeError as error:
            why = f"belongs to process {os.getppid()}, of which process {os.getpid()} is a fork"
            assert why in str(error)
    del llm, engine
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
stream.close()
assert llm.generate("a", params, use_tqdm=False)[0].finished
while engine.has_unfinished_requests():
    engine.step()
"""


def test_a_fork_is_told_that_the_engine_is_its_parents(demo_model: Path) -> None:
    done = run_python(FORK, str(demo_model))
    assert (done.returncode, done.stderr) == (0, "")


EXIT = """
import sys, threading, time
from quire import LLM, LLMEngine, SamplingParams
params = SamplingParams(max_tokens=500, ignore_eos=True)

def generate():
    while True:
        llm.generate(["Once"] * 8, params, use_tqdm=False)

def stream():
    while True:
        for _ in llm.stream("Once", params):
            pass

def step():
    for i in range(10**9):
        engine.add_request(str(i), "Once", params)
        while engine.has_unfinished_requests():
            engine.step()

if sys.argv[2] == "step":
    engine = LLMEngine(sys.argv[1])
else:
    llm = LLM(sys.argv[1])
for _ in range(3 if sys.argv[2] == "stream" else 1):
    threading.Thread(target=globals()[sys.argv[2]], daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize("what", ["generate", "stream", "step"])
def test_a_process_may_end_while_a_daemon_thread_generates(demo_model: Path, what: str) -> None:
    for _ in range(3):
        done = run_python(EXIT, str(demo_model), what)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_engine_that_was_shut_down_refuses(demo_model: Path) -> None:
    for engine in (LLM(demo_model), LLMEngine(demo_model)):
        engine._engine.shutdown()
        engine._engine.shutdown()
        with pytest.raises(MemoryError, match="the engine has ended: it was shut down"):
            if isinstance(engine, LLM):
                engine.generate("a", use_tqdm=False)
            else:
                engine.add_request("0", "a")
