"""Beam search, against transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quire import DEMO_MODEL, LLM, BeamSearchParams, LogitsProcessor, SamplingParams
from quire.model_directory import resolve_model
from transformers import AutoModelForCausalLM

PROMPTS = ["Once upon a time", "The baker said", "Who are you?", "There was a little girl named Lily. She"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(DEMO_MODEL, dtype="float32", max_model_len=256, kv_cache_memory_bytes=64 << 20)


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(resolve_model(DEMO_MODEL), dtype=torch.float32).eval()


def expected(reference: Any, ids: list[int], params: BeamSearchParams) -> list[tuple[list[int], float]]:
    """Sequences and scores of transformers, padding removed."""
    eos = reference.generation_config.eos_token_id
    ends = [] if params.ignore_eos else eos if isinstance(eos, list) else [eos]
    with torch.no_grad():
        output = reference.generate(
            torch.tensor([ids]),
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            max_new_tokens=params.max_tokens,
            do_sample=False,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            eos_token_id=ends or [reference.config.vocab_size],
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = []
    for sequence, score in zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True):
        answer = sequence[len(ids) :]
        stop = next((i + 1 for i, token in enumerate(answer) if token in ends), len(answer))
        found.append((sequence[: len(ids) + stop], score))
    return found


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("beam_width", [2, 5])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.5, 2.0])
def test_sequences_and_scores_are_those_of_transformers(
    llm: LLM, reference: Any, early_stopping: Any, beam_width: int, length_penalty: float
) -> None:
    params = BeamSearchParams(
        beam_width=beam_width, max_tokens=24, length_penalty=length_penalty, early_stopping=early_stopping
    )
    outputs = llm.beam_search(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        theirs = expected(reference, llm.get_tokenizer().encode(prompt), params)
        assert [sequence.tokens for sequence in output.sequences] == [tokens for tokens, _ in theirs]
        scores = [sequence.score for sequence in output.sequences]
        np.testing.assert_allclose(scores, [score for _, score in theirs], rtol=5e-5, atol=5e-5)


def test_ignoring_the_end_of_sequence_searches_to_the_last_token(llm: LLM, reference: Any) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=40, ignore_eos=True)
    [output] = llm.beam_search(PROMPTS[0], params)
    theirs = expected(reference, llm.get_tokenizer().encode(PROMPTS[0]), params)
    assert [sequence.tokens for sequence in output.sequences] == [tokens for tokens, _ in theirs]
    assert {sequence.finish_reason for sequence in output.sequences} == {"length"}


def test_one_beam_is_greedy(llm: LLM) -> None:
    [output] = llm.beam_search(PROMPTS[1], BeamSearchParams(beam_width=1, max_tokens=20))
    [greedy] = llm.generate(
        PROMPTS[1], SamplingParams(temperature=0, max_tokens=20, logprobs=0), use_tqdm=False
    )
    prompt = llm.get_tokenizer().encode(PROMPTS[1])
    assert output.sequences[0].tokens == prompt + list(greedy.outputs[0].token_ids)
    assert output.sequences[0].cum_logprob == greedy.outputs[0].cumulative_logprob


def test_text_and_logprobs_go_with_the_tokens(llm: LLM) -> None:
    [output] = llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=3, max_tokens=12))
    num_prompt_tokens = len(llm.get_tokenizer().encode(PROMPTS[0]))
    assert len(output.sequences) == 3
    for sequence in output.sequences:
        answer = sequence.tokens[num_prompt_tokens:]
        assert sequence.text is not None and sequence.text.startswith(PROMPTS[0])
        assert sequence.text == llm.get_tokenizer().decode(sequence.tokens)
        chosen = [position[token].logprob for position, token in zip(sequence.logprobs, answer, strict=True)]
        assert sum(chosen) == pytest.approx(sequence.cum_logprob)
        assert sequence.score == pytest.approx(sequence.cum_logprob / len(answer))


def test_a_request_may_search_and_gets_the_n_best(llm: LLM) -> None:
    params = SamplingParams(beam_width=4, n=2, max_tokens=12, logprobs=3)
    [output] = llm.generate(PROMPTS[2], params, use_tqdm=False)
    [searched] = llm.beam_search(PROMPTS[2], BeamSearchParams(beam_width=4, max_tokens=12))
    prompt = list(output.prompt_token_ids)
    assert [prompt + list(o.token_ids) for o in output.outputs] == [s.tokens for s in searched.sequences[:2]]
    for completion in output.outputs:
        assert completion.logprobs is not None
        assert all(3 <= len(position) <= 4 for position in completion.logprobs)
    streamed = list(llm.stream(PROMPTS[2], params))
    assert [o.text for o in streamed[-1].outputs] == [o.text for o in output.outputs]


def test_beams_run_beside_each_other_and_other_requests(llm: LLM) -> None:
    alone = [llm.beam_search(p, BeamSearchParams(beam_width=3, max_tokens=16))[0] for p in PROMPTS]
    greedy = SamplingParams(temperature=0, max_tokens=16)
    free_alone = [llm.generate(p, greedy, use_tqdm=False)[0].outputs[0].token_ids for p in PROMPTS]
    params = [SamplingParams(beam_width=3, n=3, max_tokens=16), greedy] * len(PROMPTS)
    mixed = llm.generate([p for p in PROMPTS for _ in range(2)], params, use_tqdm=False)
    for i in range(len(PROMPTS)):
        prompt = list(mixed[2 * i].prompt_token_ids)
        assert [prompt + list(o.token_ids) for o in mixed[2 * i].outputs] == [
            s.tokens for s in alone[i].sequences
        ]
        assert mixed[2 * i + 1].outputs[0].token_ids == free_alone[i]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"beam_width": 0}, "beam_width must be between 1 and 256, got 0"),
        ({"beam_width": 3, "n": 4}, "n must be at most beam_width (3), got 4"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature must be 0"),
        ({"beam_width": 2, "top_k": 5}, "top_k cannot be set with a beam_width above 1"),
        ({"beam_width": 2, "stop": ["a"]}, "stop cannot be set"),
        ({"beam_width": 2, "structured_outputs": {"regex": "a"}}, "structured_outputs cannot be set"),
        ({"beam_width": 2, "prompt_logprobs": 1}, "prompt_logprobs cannot be set"),
    ],
)
def test_what_no_search_can_do_is_refused_by_name(llm: LLM, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=4, **given), use_tqdm=False)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"beam_width": 0}, "beam_width must be between 1 and 256, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": 0.5}, "temperature must be 0, got 0.5"),
    ],
)
def test_parameters_are_checked_when_they_are_made(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **given})


def test_ranks_copy_their_own_blocks(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=24)
    two = LLM(DEMO_MODEL, dtype="float32", max_model_len=256, tensor_parallel_size=2)
    found = [[s.tokens for s in o.sequences] for o in two.beam_search(PROMPTS, params)]
    assert found == [[s.tokens for s in o.sequences] for o in llm.beam_search(PROMPTS, params)]


class Forbids(LogitsProcessor):
    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: Any) -> None:
        logits[:, 5:] = -np.inf


def test_a_processor_of_all_requests_and_a_search_do_not_go_together() -> None:
    llm = LLM(DEMO_MODEL, max_model_len=64, logits_processors=[Forbids])
    with pytest.raises(ValueError, match=r"beam_width is 2, but .*Forbids' changes every request"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2))


def test_odd_arguments_of_a_search_are_refused_by_name(llm: LLM) -> None:
    with pytest.raises(TypeError, match="early_stopping"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2, early_stopping="ever"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2, temperature=1.0))
    with pytest.raises(TypeError, match="params must be BeamSearchParams"):
        llm.beam_search("a", SamplingParams())  # type: ignore[arg-type]
