"""What requests hand to logits processors, and the budget of thinking, which is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quire import LLM, SamplingParams

START, END = [300, 301], [302, 303, 304]
PROMPT = [50, 60, 70, *START, 80]


def test_extra_args_are_a_dictionary_whatever_is_in_it() -> None:
    given: dict[str, Any] = {"a": [1, 2.5, None], "é": {"b": True}}
    params = SamplingParams(extra_args=given)
    assert params.extra_args == given
    params.extra_args = None
    assert params == SamplingParams()
    with pytest.raises(ValueError, match="not JSON compliant"):
        SamplingParams(extra_args={"a": float("nan")})
    with pytest.raises(TypeError, match=r"^extra_args must be"):
        SamplingParams(extra_args=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"num_gpu_blocks_override": 18, "max_num_seqs": 8},
    ],
    ids=lambda options: "-".join(f"{value}" for value in options.values()) or "default",
)
def test_thinking_ends_behind_its_budget(
    demo_model: Path, options: dict[str, Any], asynchronous: bool
) -> None:
    llm = LLM(
        demo_model,
        max_model_len=256,
        think_start_token_ids=START,
        think_end_token_ids=END,
        async_scheduling=asynchronous,
        **options,
    )
    base: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_tokens": 70, "ignore_eos": True}
    prompts = [[*range(400 + 100 * i, 430 + 100 * i), *PROMPT] for i in range(5)]
    free = [o.outputs[0].token_ids for o in llm.generate(prompts, SamplingParams(**base), use_tqdm=False)]
    budgets = [None, 0, 1, 7, 40]
    params = [SamplingParams(**base, max_thinking_tokens=budget) for budget in budgets]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for output, expected, budget in zip(outputs, free, budgets, strict=True):
        ids = list(output.outputs[0].token_ids)
        if budget is None:
            assert ids == expected
        else:
            assert ids[:budget] == expected[:budget]
            assert ids[budget : budget + 3] == END
    assert (llm.stats().num_preemptions > 0) == ("num_gpu_blocks_override" in options)


def test_who_does_not_think_is_left_alone(demo_model: Path) -> None:
    llm = LLM(demo_model, max_model_len=256, think_start_token_ids=START, think_end_token_ids=END)
    base: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    for prompt in ([50, 60, 70], [*PROMPT, *END, 90]):
        [free] = llm.generate([prompt], SamplingParams(**base), use_tqdm=False)
        [output] = llm.generate([prompt], SamplingParams(**base, max_thinking_tokens=2), use_tqdm=False)
        assert output.outputs[0].token_ids == free.outputs[0].token_ids


def test_processors_that_are_not_there_are_refused_by_name(demo_model: Path) -> None:
    with pytest.raises(ValueError, match="logits_processors has 'none', which is not registered"):
        LLM(demo_model, logits_processors=["none"])
    with pytest.raises(ValueError, match=r"cannot load '\./none\.so'"):
        LLM(demo_model, logits_processors=["./none.so"])
    llm = LLM(demo_model, max_model_len=64)
    with pytest.raises(
        ValueError, match="max_thinking_tokens is 3, but the engine has no think_end_token_ids"
    ):
        llm.generate("hello", SamplingParams(max_thinking_tokens=3), use_tqdm=False)
