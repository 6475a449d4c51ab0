"""Log-probabilities of prompts are transformers', however the prompt is computed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quire import LLM, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from quire._core import replay_recording
from transformers import AutoModelForCausalLM

PROMPTS = [
    "Tell me a short story about a lighthouse. " * 4,
    "The baker said",
    "Once upon a time there was a keeper who could not sleep. " * 3,
]
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=3, logprobs=1)


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, dtype="float32", max_model_len=256, max_logprobs=-1)


def expect_transformers(reference: Any, output: RequestOutput, num_top: int) -> None:
    ids = output.prompt_token_ids
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0].double()
    expected = torch.log_softmax(logits, -1).numpy()
    positions = output.prompt_logprobs
    assert positions is not None
    assert len(positions) == len(ids)
    assert positions[0] is None
    for i, position in enumerate(positions[1:]):
        assert position is not None
        row = expected[i]
        assert next(iter(position)) == ids[i + 1]
        assert len(position) in (num_top, num_top + 1)
        for token, entry in position.items():
            assert entry.logprob == pytest.approx(row[token], abs=2e-3)
            assert abs(entry.rank - 1 - int((row > row[token]).sum())) <= 2
        likeliest = sorted(position.values(), key=lambda entry: entry.rank)[:num_top]
        assert [entry.rank for entry in likeliest] == list(range(1, len(likeliest) + 1))


@pytest.mark.parametrize("num_top", [0, 5, 200])
def test_prompt_logprobs_equal_transformers(llm: LLM, reference: Any, num_top: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=num_top)
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        expect_transformers(reference, output, num_top)
        assert output.outputs[0].logprobs is None
        assert pickle.loads(pickle.dumps(output)) == output


def test_all_of_the_vocabulary_sums_to_one(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1)
    [output] = llm.generate("The baker", params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    for position in output.prompt_logprobs[1:]:
        assert position is not None
        assert len(position) == 4096
        assert np.exp([entry.logprob for entry in position.values()]).sum() == pytest.approx(1, abs=1e-4)


def test_a_prompt_of_one_token_has_none_but_says_so(llm: LLM) -> None:
    [output] = llm.generate([[77]], SamplingParams(max_tokens=1, prompt_logprobs=2), use_tqdm=False)
    assert output.prompt_logprobs == [None]
    [output] = llm.generate([[77]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt_logprobs is None


def test_cached_prefixes_are_not_read_but_made(llm: LLM, reference: Any) -> None:
    plain = SamplingParams(temperature=0, max_tokens=1)
    llm.generate(PROMPTS[0], plain, use_tqdm=False)
    [output] = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)
    assert output.num_cached_tokens == 0
    expect_transformers(reference, output, 3)
    [output] = llm.generate(PROMPTS[0], plain, use_tqdm=False)
    assert output.num_cached_tokens > 0


def values(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (
            [
                position and [(id, entry.logprob, entry.rank) for id, entry in position.items()]
                for position in output.prompt_logprobs or []
            ],
            output.outputs[0].token_ids,
        )
        for output in outputs
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"num_gpu_blocks_override": 18, "max_num_batched_tokens": 24, "max_num_seqs": 8},
        {"max_num_seqs": 1},
    ],
    ids=lambda options: "-".join(f"{value}" for value in options.values()),
)
def test_they_do_not_depend_on_the_schedule(
    demo_model: Path, options: dict[str, Any], asynchronous: bool, tmp_path: Path
) -> None:
    prompts = [*PROMPTS, PROMPTS[0], "One " * 40]
    params = PARAMS.clone()
    params.max_tokens = 60
    alone = LLM(demo_model, max_model_len=256, enable_prefix_caching=False)
    expected = values([alone.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts])
    llm = LLM(demo_model, max_model_len=256, async_scheduling=asynchronous, **options)
    for _ in range(2):
        assert values(llm.generate(prompts, params, use_tqdm=False)) == expected
    assert (llm.stats().num_preemptions > 0) == ("num_gpu_blocks_override" in options)
    llm.dump_flight_recorder(tmp_path / "a.rec")
    report = replay_recording(str(tmp_path / "a.rec"))
    assert report.divergence == ""
    assert report.num_identical == report.num_steps > 10


def test_one_completion_of_several_computes_them(demo_model: Path) -> None:
    engine = LLMEngine(demo_model, max_model_len=256)
    params = PARAMS.clone()
    params.n = 3
    params.output_kind = RequestOutputKind.DELTA
    engine.add_request("a", PROMPTS[0], params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    given = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert len(given) == 1
    assert len(given[0]) == len(outputs[0].prompt_token_ids)
