"""Logits processors that are Python classes: what they are told, what comes of it, what breaks nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from quire import (
    LLM,
    BatchUpdate,
    LLMEngine,
    LogitsProcessor,
    LogitsProcessorConfig,
    MoveDirectionality,
    RequestOutput,
    SamplingParams,
)

Logits = Any  # np.ndarray


class Rows(LogitsProcessor):
    """Keeps a state for each row, in a dictionary as vLLM's processors do, and checks the life cycle."""

    extra_arg_names = ("target",)

    def __init__(self, config: LogitsProcessorConfig) -> None:
        self.config = config
        self.rows: dict[int, Any] = {}

    def new_state(self, params: SamplingParams, prompt: list[int], output: list[int]) -> Any:
        return params.extra_args["target"], prompt, output

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            del self.rows[row]
        for row, params, prompt, output in batch_update.added:
            self.rows[row] = self.new_state(params, prompt, output)
        for source, target, how in batch_update.moved:
            if how is MoveDirectionality.SWAP:
                self.rows[source], self.rows[target] = self.rows[target], self.rows[source]
            else:
                assert target not in self.rows
                self.rows[target] = self.rows.pop(source)
        assert sorted(self.rows) == list(range(batch_update.batch_size))

    def apply(self, logits: Logits) -> Logits | None:
        assert logits.shape == (len(self.rows), self.config.vocab_size)
        assert logits.dtype == np.float32
        for row, (target, prompt, output) in self.rows.items():
            # The n-th token is as far behind the target as n tokens, and as the prompt is long.
            logits[row, target + len(output) + len(prompt)] = 1000
        return None


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 5},
        {"num_gpu_blocks_override": 12, "max_num_seqs": 8},
        {"tensor_parallel_size": 2, "num_threads": 1, "dtype": "float32"},
    ],
    ids=lambda options: "-".join(f"{value}" for value in options.values()) or "default",
)
def test_rows_are_those_of_the_requests_that_use_it(
    demo_model: Path, options: dict[str, Any], asynchronous: bool
) -> None:
    llm = LLM(
        demo_model, max_model_len=128, logits_processors=[Rows], async_scheduling=asynchronous, **options
    )
    prompts = [[*range(20 + i, 30 + 3 * i)] for i in range(12)]
    params = [
        SamplingParams(
            temperature=0.7,
            seed=i,
            max_tokens=5 + 2 * i,
            ignore_eos=True,
            extra_args={} if i % 3 == 2 else {"target": 100 * i},
        )
        for i in range(12)
    ]
    outputs = ids(llm.generate(prompts, params, use_tqdm=False))
    free = [SamplingParams(temperature=0.7, seed=i, max_tokens=5 + 2 * i, ignore_eos=True) for i in range(12)]
    plain = ids(llm.generate(prompts, free, use_tqdm=False))
    for i, output in enumerate(outputs):
        if i % 3 == 2:
            assert output == plain[i]
        else:
            first = 100 * i + len(prompts[i])
            assert output == [*range(first, first + 5 + 2 * i)]
    assert (llm.stats().num_preemptions > 0) == ("num_gpu_blocks_override" in options)


def test_an_engine_in_the_callers_loop_has_them_too(demo_model: Path) -> None:
    engine = LLMEngine(demo_model, logits_processors=[Rows], max_num_seqs=3)
    for i in range(7):
        params = SamplingParams(
            temperature=0, max_tokens=3 + i, extra_args={"target": 50 * i}, ignore_eos=True
        )
        engine.add_request(str(i), [5, 6, 7], params)
    done = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0].token_ids
    assert done == {str(i): [*range(50 * i + 3, 50 * i + 6 + i)] for i in range(7)}


class Forbids(Rows):
    """What it returns is another array."""

    extra_arg_names = ("forbid",)

    def new_state(self, params: SamplingParams, prompt: list[int], output: list[int]) -> Any:
        return params.extra_args["forbid"]

    def apply(self, logits: Logits) -> Logits | None:
        changed = logits.astype(np.float64)
        for row, forbidden in self.rows.items():
            changed[row, forbidden] = -np.inf
        return changed


def test_what_is_returned_is_sampled_from_and_log_probabilities_stay_the_models(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=128, logits_processors=[Forbids, Rows])
    base: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    prompts = [[5, 6, 7], [50, 60], [9, 9]]
    plain = llm.generate(prompts, SamplingParams(**base), use_tqdm=False)
    forbidden = [output.outputs[0].token_ids for output in plain]
    params = [SamplingParams(**base, extra_args={"forbid": tokens}) for tokens in forbidden]
    params[1] = SamplingParams(**base)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert ids(outputs)[1] == forbidden[1]
    for i in (0, 2):
        assert not set(ids(outputs)[i]) & set(forbidden[i])
        bias = SamplingParams(**base, logit_bias=dict.fromkeys(forbidden[i], -100.0))
        [expected] = llm.generate([prompts[i]], bias, use_tqdm=False)
        assert ids(outputs)[i] == expected.outputs[0].token_ids
        assert outputs[i].outputs[0].logprobs == expected.outputs[0].logprobs


class Transformers(Rows):
    """Runs transformers' processors, which go by the ids so far, on the memory of the logits."""

    extra_arg_names = ("transformers",)

    def new_state(self, params: SamplingParams, prompt: list[int], output: list[int]) -> Any:
        import transformers

        made = [getattr(transformers, name)(*given) for name, given in params.extra_args["transformers"]]
        return made, prompt, output

    def apply(self, logits: Logits) -> Logits | None:
        import torch

        for row, (made, prompt, output) in self.rows.items():
            scores = torch.from_numpy(logits)[row : row + 1]
            for processor in made:
                scores = processor(torch.tensor([prompt + output]), scores)
            logits[row] = scores.numpy()
        return None


def test_transformers_processors_give_what_our_own_fields_give(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=160, logits_processors=["test_python_logits_processors:Transformers"])
    prompts: list[Any] = [[5, 6, 7, 8], "Once upon a time", [40, 41, 40]]
    base: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    penalty = SamplingParams(**base, repetition_penalty=1.3)
    same = SamplingParams(**base, extra_args={"transformers": [["RepetitionPenaltyLogitsProcessor", [1.3]]]})
    both = llm.generate(prompts * 2, [penalty] * 3 + [same] * 3, use_tqdm=False)
    assert ids(both[:3]) == ids(both[3:])
    never = SamplingParams(**base, extra_args={"transformers": [["NoRepeatNGramLogitsProcessor", [2]]]})
    for output in llm.generate(prompts, never, use_tqdm=False):
        answer = output.outputs[0].token_ids
        pairs = [tuple(answer[i : i + 2]) for i in range(len(answer) - 1)]
        assert len(set(pairs)) == len(pairs)
    ends = SamplingParams(
        temperature=0, max_tokens=9, extra_args={"transformers": [["ForcedEOSTokenLogitsProcessor", [9, 1]]]}
    )
    # The ninth token of all.
    assert llm.generate([5] * 4, ends, use_tqdm=False)[0].outputs[0].token_ids[4] == 1


class Invariant(LogitsProcessor):
    """Takes the temperature from the rows that have one."""

    seen: ClassVar[list[int]] = []

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: Logits) -> Logits | None:
        self.seen.append(len(logits))
        return logits * 1000.0


def test_one_that_is_argmax_invariant_is_not_called_for_greedy_rows(demo_model: Path) -> None:
    Invariant.seen.clear()
    llm = LLM(demo_model, max_model_len=64, logits_processors=[Invariant])
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    [plain] = llm.generate([[5, 6, 7]], greedy, use_tqdm=False)
    assert Invariant.seen == []
    hot = SamplingParams(temperature=1.5, seed=3, max_tokens=8, ignore_eos=True)
    outputs = llm.generate([[5, 6, 7]] * 3, [greedy, hot, greedy], use_tqdm=False)
    assert ids(outputs) == [plain.outputs[0].token_ids] * 3
    assert set(Invariant.seen) == {1}


class Memory(LogitsProcessor):
    places: ClassVar[list[int]] = []

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: Logits) -> Logits | None:
        assert not logits.flags.owndata and logits.flags.writeable
        self.places.append(logits.ctypes.data)
        return None


def test_on_a_cpu_the_array_is_the_memory_of_the_logits(demo_model: Path) -> None:
    Memory.places.clear()
    llm = LLM(demo_model, max_model_len=64, logits_processors=[Memory], device="cpu")
    llm.generate([[5, 6], [7, 8, 9]], SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
    # Copies would be made anew for each step, and lie where there is room.
    assert len(Memory.places) >= 20 and len(set(Memory.places)) == 1


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
    "raise": r"ValueError: out of tune \(.*test_python_logits_processors.py:\d+\)",
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
elif what == "stream":
    stream = llm.stream("Once", params)
    next(stream)
else:
    threading.Thread(target=step if what == "step" else generate, daemon=True).start()
    time.sleep(0.3)
"""


@pytest.mark.parametrize("what", ["generate", "ahead", "step", "stream", "fork"])
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


def test_what_is_no_processor_is_refused_by_its_place(demo_model: Path) -> None:
    for entries, error, says in (
        ([Rows, 5], TypeError, r"logits_processors\[1\] must be a class with update_state and apply"),
        ([dict], TypeError, r"logits_processors\[0\] must be a class"),
        (["no_such_module:Class"], ValueError, "cannot import 'no_such_module:Class'"),
        (["math:nothing"], ValueError, "cannot import 'math:nothing'"),
        (["math:pi"], TypeError, "must be a class"),
        ([Rows, Rows], ValueError, "Rows is listed already"),
        ("none", ValueError, "which is not registered; there are "),
    ):
        with pytest.raises(error, match=says):
            LLM(demo_model, logits_processors=entries)

    class NeedsMore(Rows):
        def __init__(self, config: LogitsProcessorConfig, more: int) -> None:
            raise AssertionError

    with pytest.raises(ValueError, match=r"NeedsMore' cannot be made: TypeError: .*more"):
        LLM(demo_model, logits_processors=[NeedsMore])
