"""Logits processors in Python that misbehave, or run while engines and processes end: nothing breaks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from quire import LLM, SamplingParams, _core
from test_python_logits_processors import Logits, Rows, ids


class Hostile(Rows):
    """Does what extra_args name to the array, or to the engine."""

    extra_arg_names = ("do",)
    llm: ClassVar[Any] = None
    kept: ClassVar[list[Any]] = []
    threads: ClassVar[list[threading.Thread]] = []

    def new_state(self, params: SamplingParams, prompt: list[int], output: list[int]) -> Any:
        what = params.extra_args["do"]
        if what == "raise in update":
            raise KeyError("not here")
        output.append(7)  # the list is not the engine's
        output.extend([8] * 100)
        return what, params

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if sampling_params.extra_args["do"] == "refuse":
            raise ValueError("nothing to be done")
        sampling_params.temperature = 0.3  # a copy

    def apply(self, logits: Logits) -> Logits | None:
        for what, params in self.rows.values():
            params.max_tokens = 1  # a copy
            match what:
                case "raise":
                    raise ValueError("out of tune")
                case "exit":
                    sys.exit("no")
                case "return text":
                    return "logits"
                case "return another shape":
                    return logits[:, :5]
                case "return complex":
                    return logits.astype(np.complex128)
                case "nan":
                    logits[:] = np.nan
                case "read-only":
                    logits.setflags(write=False)
                    return logits + 1
                case "keep":
                    self.kept.append(logits)
                case "keep rows":
                    self.kept.append([logits[:, 3:], logits.T, memoryview(logits), logits.copy()])
                case "write later":
                    self.threads.append(threading.Thread(target=self.write, args=(logits,)))
                    self.threads[-1].start()
                case "call":
                    self.llm.generate([5, 6], use_tqdm=False)
                case "call in a thread":
                    self.threads.append(
                        threading.Thread(target=self.llm.generate, args=([5, 6],), kwargs={"use_tqdm": False})
                    )
                    self.threads[-1].start()
                case "drain":
                    self.llm.drain()
                case "reset":
                    self.llm.reset_prefix_cache()
                case "harmless":
                    self.llm.stats()
                    self.llm.abort_request = None
        return None

    @staticmethod
    def write(logits: Logits) -> None:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            logits[:] = 1e9


FAILS = {
    "raise": r"ValueError: out of tune \(.*test_hostile_logits_processors.py:\d+\)",
    "raise in update": r"KeyError: 'not here' \(",
    "exit": r"SystemExit: no",
    "return text": r"apply must return None or an array of shape \(1, 4096\), got 'logits' \(str\)",
    "return another shape": r"got an array of shape \(1, 5\)",
    "return complex": "Cannot cast",
    "nan": "hold a NaN: .*, or a logits processor has written one",
    "read-only": "read-only",
    "call": "a logits processor must not call the engine that it is part of",
    "drain": "must not call the engine",
    "reset": "must not call the engine",
}
GOES_WELL = ["keep", "keep rows", "write later", "call in a thread", "harmless"]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", [*FAILS, *GOES_WELL])
def test_a_hostile_processor_harms_its_own_request_and_no_other(
    demo_model: Path, what: str, asynchronous: bool
) -> None:
    llm = LLM(demo_model, max_model_len=128, logits_processors=[Hostile, Rows], async_scheduling=asynchronous)
    Hostile.llm = llm
    base: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_tokens": 30, "ignore_eos": True}
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    plain = [
        SamplingParams(**base),
        SamplingParams(**base),
        SamplingParams(**base, extra_args={"target": 40}),
    ]
    free = ids(llm.generate(prompts, plain, use_tqdm=False))
    for _ in range(2):
        given = [plain[0], SamplingParams(**base, extra_args={"do": what}), plain[2]]
        outputs = llm.generate(prompts, given, use_tqdm=False)
        assert [ids(outputs)[0], ids(outputs)[2]] == [free[0], free[2]]
        bad = outputs[1].outputs[0]
        if what in FAILS:
            assert bad.finish_reason == "error"
            with pytest.raises(AssertionError, match=FAILS[what]):
                raise AssertionError(bad.error)
        elif what != "write later":  # it may write before its own row is moved away
            assert (bad.finish_reason, bad.token_ids) == ("length", free[1])
    for thread in Hostile.threads:
        thread.join()
    Hostile.threads.clear()
    Hostile.llm = None
    assert ids(llm.generate(prompts, plain, use_tqdm=False)) == free
    with pytest.raises(ValueError, match="Hostile': ValueError: nothing to be done"):
        llm.generate([5], SamplingParams(extra_args={"do": "refuse"}), use_tqdm=False)
    del llm
    gc.collect()
    for kept in Hostile.kept:  # what was kept outlives the engine
        np.asarray(kept[0] if isinstance(kept, list) else kept)[:] = 5
    Hostile.kept.clear()


class Slow(Rows):
    extra_arg_names = ("slow",)

    def new_state(self, params: SamplingParams, prompt: list[int], output: list[int]) -> Any:
        return None

    def apply(self, logits: Logits) -> Logits | None:
        time.sleep(0.01)
        return None


def test_requests_that_use_none_do_not_wait_for_the_lock_of_python(demo_model: Path) -> None:
    """The thread of the engine computes while this one keeps Python to itself."""
    llm = LLM(demo_model, max_model_len=256, logits_processors=[Slow], num_threads=1)
    stream: Any = llm.stream([5, 6], SamplingParams(max_tokens=120, ignore_eos=True))
    next(stream)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        end = time.monotonic() + 60
        while llm.stats().num_generation_tokens < 100:
            assert time.monotonic() < end
            pow(3, 200_000)  # a single call, which lets no other thread in
    finally:
        sys.setswitchinterval(before)
    stream.close()


def test_engines_go_while_their_processors_run(demo_model: Path) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True, extra_args={"slow": 1})
    for asynchronous in (False, True):
        for kind in ("stream", "threads", "cycle"):
            llm = LLM(demo_model, max_model_len=256, logits_processors=[Slow], async_scheduling=asynchronous)
            stream = llm.stream([5, 6], params)
            next(stream)
            if kind == "cycle":
                llm.me = llm  # type: ignore[attr-defined]
            if kind == "threads":
                thread = threading.Thread(target=lambda s: [next(s) for _ in range(3)], args=(stream,))
                thread.start()
                del stream, llm
                thread.join()
                continue
            del llm, stream
            gc.collect()


class Drops(Slow):
    """Lets the last reference to its own engine go, on the engine's thread."""

    extra_arg_names = ("drop",)
    held: ClassVar[list[Any]] = []

    def apply(self, logits: Logits) -> Logits | None:
        time.sleep(0.05)
        self.held.clear()
        return None


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_engine_may_go_on_its_own_thread(demo_model: Path, asynchronous: bool) -> None:
    gc.collect()
    before = num_threads()
    llm = LLM(demo_model, max_model_len=256, logits_processors=[Drops], async_scheduling=asynchronous)
    assert num_threads() > before
    gone = weakref.ref(llm)
    params = SamplingParams(max_tokens=100, ignore_eos=True, extra_args={"drop": 1})
    llm.pause()
    queue = _core.OutputQueue()
    llm._submit(["a"], [params], queue, _core.RequestOutputKind.DELTA, [{}])
    Drops.held.append(llm)
    del llm
    Drops.held[0].resume()
    end = time.monotonic() + 20
    while gone() is not None or num_threads() > before:
        assert time.monotonic() < end
        time.sleep(0.01)


PROGRAM = """
import os, sys, threading, time
from quire import LLM, LLMEngine, LogitsProcessor, SamplingParams

class Slow(LogitsProcessor):
    def update_state(self, batch_update): pass
    def apply(self, logits):
        time.sleep(0.002)

params = SamplingParams(max_tokens=400, ignore_eos=True)

def generate():
    while True:
        llm.generate(["Once"] * 4, params, use_tqdm=False)

def step():
    for i in range(10**9):
        engine.add_request(str(i), "Once", params)
        while engine.has_unfinished_requests():
            engine.step()

what = sys.argv[2]
if what == "step":
    engine = LLMEngine(sys.argv[1], logits_processors=[Slow])
else:
    llm = LLM(sys.argv[1], logits_processors=[Slow], async_scheduling=what == "ahead")
if what == "fork":
    stream = llm.stream("Once", params)
    next(stream)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            try:
                llm.generate("a", use_tqdm=False)
            except RuntimeError:
                pass
            try:
                stream.close()
            except RuntimeError:
                pass
            del llm, stream
            own = LLM(sys.argv[1], logits_processors=[Slow])
            own.generate("a", SamplingParams(max_tokens=3), use_tqdm=False)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stream.close()
elif what == "finished":
    llm.generate(["Once"] * 3, SamplingParams(max_tokens=3), use_tqdm=False)
elif what == "stream":
    stream = llm.stream("Once", params)
    next(stream)
else:
    threading.Thread(target=step if what == "step" else generate, daemon=True).start()
    time.sleep(0.3)
"""


@pytest.mark.parametrize("what", ["generate", "ahead", "step", "stream", "finished", "fork"])
def test_a_process_ends_and_forks_while_processors_run(demo_model: Path, what: str) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(demo_model), what],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
