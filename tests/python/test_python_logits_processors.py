"""Logits processors that are Python classes: what they are told, and what comes of it."""

from __future__ import annotations

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
from quire.logits_processors import Host

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


class Recording(LogitsProcessor):
    updates: ClassVar[list[BatchUpdate | None]] = []

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)

    def apply(self, logits: Logits) -> Logits | None:
        return None


@pytest.mark.parametrize("added_first", [False, True])
def test_updates_turn_any_batch_into_any_other(added_first: bool) -> None:
    """Whether what is added or what is removed is done first, which processors of vLLM's do differently."""
    host = Host(Recording, None)  # type: ignore[arg-type]
    random = np.random.default_rng(7)
    rows: dict[int, int] = {}
    for _ in range(2000):
        keys = random.permutation(8)[: random.integers(1, 9)].tolist()
        if random.random() < 0.3:
            keys = list(rows.values()) or keys
        host.apply(np.zeros((len(keys), 1), np.float32), [(key, (key, [], [])) for key in keys])
        update = Recording.updates.pop()
        if update is None:
            assert list(rows.values()) == keys
            continue
        added: dict[int, Any] = {row: params for row, params, _, _ in update.added}
        if added_first:
            rows.update(added)
        for row in update.removed:
            del rows[row]
        if not added_first:
            rows.update(added)
        for source, target, how in update.moved:
            assert (target in rows) == (how is MoveDirectionality.SWAP)
            moved = rows.pop(source)
            if target in rows:
                rows[source] = rows[target]
            rows[target] = moved
        rows = dict(sorted(rows.items()))
        assert rows == dict(enumerate(keys)) and update.batch_size == len(keys)


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
