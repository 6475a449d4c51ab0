"""Requests and answers of a model that is not decoupled, over HTTP and gRPC with the stock client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, SamplingParams
from triton_fixtures import ENGINE
from triton_requests import error_of, infer
from triton_server import TritonServer

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
ONLY_NEW = {"exclude_input_in_output": True}
Reference = Callable[..., Any]

# The flag, the output it asks for, and the output's value for GREEDY.
FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "return_finish_reason": ("finish_reason", lambda _: ["length"]),
    "return_output_ids": ("output_ids", lambda completion: [list(completion.token_ids)]),
    "return_num_output_tokens": ("num_output_tokens", lambda _: [12]),
    "return_num_input_tokens": ("num_input_tokens", lambda _: [4]),
}
THINK = {"think_start_token_ids": [300, 301], "think_end_token_ids": [302]}


def test_text_goes_in_and_the_engines_greedy_text_comes_out(client: Any, reference: Reference) -> None:
    answer = infer(client, "sync", {"text_input": PROMPT, "sampling_parameters": GREEDY, **ONLY_NEW})
    assert answer.outputs == {"text_output": [reference(PROMPT, **GREEDY)[0].text]}


def test_the_prompt_stands_before_the_answer_unless_excluded(client: Any, reference: Reference) -> None:
    answer = infer(client, "sync", {"text_input": PROMPT, "sampling_parameters": GREEDY})
    assert answer.text == PROMPT + reference(PROMPT, **GREEDY)[0].text


def test_ids_go_in_and_ids_come_out_beside_the_text(client: Any, reference: Reference) -> None:
    ids = [17, 300, 42]
    expected = reference(ids, **GREEDY)[0]
    answer = infer(client, "sync", {"input_ids": ids, "sampling_parameters": GREEDY, **ONLY_NEW})
    assert answer.outputs == {"output_ids": [list(expected.token_ids)], "text_output": [expected.text]}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_adds_its_output(client: Any, reference: Reference, flag: str) -> None:
    name, value = FLAGS[flag]
    ids = [17, 300, 42, 8]  # four tokens, whatever the tokenizer
    inputs = {"input_ids": ids, "sampling_parameters": GREEDY, flag: True, **ONLY_NEW}
    answer = infer(client, "sync", inputs)
    assert answer.outputs[name] == value(reference(ids, **GREEDY)[0])
    assert "text_output" in answer.outputs


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_may_be_a_parameter(client: Any, flag: str) -> None:
    answer = infer(client, "sync", {"text_input": PROMPT}, {flag: True, "max_tokens": 2})
    assert set(answer.outputs) == {"text_output", FLAGS[flag][0]}


def test_naming_an_output_asks_for_it(client: Any) -> None:
    inputs = {"text_input": PROMPT, "sampling_parameters": GREEDY}
    answer = infer(client, "sync", inputs, outputs=["finish_reason", "num_output_tokens"])
    assert answer.outputs == {"finish_reason": ["length"], "num_output_tokens": [12]}


def test_sampling_parameters_may_be_parameters(client: Any, reference: Reference) -> None:
    answer = infer(client, "sync", {"text_input": PROMPT}, {**GREEDY, **ONLY_NEW})
    assert answer.text == reference(PROMPT, **GREEDY)[0].text


def test_numbers_may_be_strings(client: Any, reference: Reference) -> None:
    sampling = {"temperature": "0.0", "max_tokens": "12", "ignore_eos": "true"}
    answer = infer(client, "sync", {"text_input": PROMPT, "sampling_parameters": sampling, **ONLY_NEW})
    assert answer.text == reference(PROMPT, **GREEDY)[0].text


@pytest.mark.parametrize("as_parameters", [False, True])
def test_a_search_with_beams_gives_its_best(client: Any, reference: Reference, as_parameters: bool) -> None:
    search = {"beam_width": 4, "n": 3, "max_tokens": 12, "early_stopping": "never", "length_penalty": 0.5}
    expected = [completion.text for completion in reference(PROMPT, **search)]
    given = ONLY_NEW if as_parameters else {"sampling_parameters": search, **ONLY_NEW}
    answer = infer(client, "sync", {"text_input": PROMPT, **given}, search if as_parameters else {})
    assert answer.outputs["text_output"] == expected
    assert len(set(expected)) == 3


def test_n_completions_are_n_rows(client: Any, reference: Reference) -> None:
    sampling = {"n": 3, "seed": 7, "temperature": 1.0, "max_tokens": 60}
    expected = reference("Who are you?", **sampling)
    inputs = {"text_input": "Who are you?", "sampling_parameters": sampling, **ONLY_NEW}
    flags = {"return_output_ids": True, "return_finish_reason": True, "return_num_output_tokens": True}
    answer = infer(client, "sync", {**inputs, **flags})
    lengths = [len(completion.token_ids) for completion in expected]
    assert answer.outputs["text_output"] == [completion.text for completion in expected]
    assert answer.outputs["num_output_tokens"] == lengths
    assert answer.outputs["finish_reason"] == [completion.finish_reason for completion in expected]
    assert answer.outputs["output_ids"] == [
        list(completion.token_ids) + [-1] * (max(lengths) - len(completion.token_ids))
        for completion in expected
    ]


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_text_before_it(client: Any, reference: Reference, as_list: bool) -> None:
    text = reference(PROMPT, **GREEDY)[0].text
    word = text.split()[3]
    sampling = {**GREEDY, "stop": ["no such text", word] if as_list else word}
    inputs = {"text_input": PROMPT, "sampling_parameters": sampling, **ONLY_NEW}
    answer = infer(client, "sync", {**inputs, "return_finish_reason": True})
    assert answer.outputs == {"text_output": [text[: text.index(word)]], "finish_reason": ["stop"]}


def test_a_list_of_stop_token_ids_is_read(client: Any, reference: Reference) -> None:
    third = reference(PROMPT, **GREEDY)[0].token_ids[2]
    sampling = {**GREEDY, "stop_token_ids": [third]}
    inputs = {"text_input": PROMPT, "sampling_parameters": sampling, "return_num_output_tokens": True}
    assert infer(client, "sync", inputs).outputs["num_output_tokens"] == [3]


def test_logit_bias_is_read(client: Any) -> None:
    sampling = {"temperature": 0, "max_tokens": 3, "logit_bias": {"42": 100}}
    inputs = {"text_input": PROMPT, "sampling_parameters": sampling, "return_output_ids": True}
    assert infer(client, "sync", inputs).outputs["output_ids"] == [[42, 42, 42]]


def test_log_probabilities_are_the_engines(client: Any, reference: Reference) -> None:
    sampling = {**GREEDY, "logprobs": 2}
    expected = reference(PROMPT, **sampling)[0]
    inputs = {"text_input": PROMPT, "sampling_parameters": sampling}
    flags = {"return_logprobs": True, "return_cumulative_logprob": True}
    answer = infer(client, "sync", {**inputs, **flags})
    [cumulative] = answer.outputs["cumulative_logprob"]
    assert cumulative == pytest.approx(expected.cumulative_logprob, rel=1e-5)
    [encoded] = answer.outputs["logprobs"]
    for position, tokens in zip(json.loads(encoded), expected.logprobs, strict=True):
        assert {int(token) for token in position} == set(tokens)
        for token, entry in tokens.items():
            assert position[str(token)]["rank"] == entry.rank
            assert position[str(token)]["logprob"] == pytest.approx(entry.logprob, rel=1e-5)


def test_decoded_tokens_of_log_probabilities_make_up_the_text(client: Any) -> None:
    inputs = {"text_input": PROMPT, "sampling_parameters": GREEDY, "return_logprobs": True, **ONLY_NEW}
    answer = infer(client, "sync", inputs)
    positions = json.loads(answer.outputs["logprobs"][0])
    assert "".join(next(iter(tokens.values()))["decoded_token"] for tokens in positions) == answer.text


def test_log_probabilities_of_the_prompt_name_its_tokens(client: Any) -> None:
    sampling = {**GREEDY, "prompt_logprobs": 1}
    inputs = {"text_input": PROMPT, "sampling_parameters": sampling}
    flags = {"return_prompt_logprobs": True, "return_num_input_tokens": True}
    answer = infer(client, "sync", {**inputs, **flags})
    [encoded] = answer.outputs["prompt_logprobs"]
    first, *positions = json.loads(encoded)
    assert first is None
    assert answer.outputs["num_input_tokens"] == [1 + len(positions)]
    named = "".join(next(iter(tokens.values()))["decoded_token"] for tokens in positions)
    assert named
    assert PROMPT.endswith(named)


def test_a_seed_repeats_the_answer(client: Any) -> None:
    inputs = {"text_input": PROMPT, "sampling_parameters": {"seed": 3, "max_tokens": 12}}
    assert infer(client, "sync", inputs).outputs == infer(client, "sync", inputs).outputs


def test_text_of_many_bytes_a_character_survives(client: Any, reference: Reference) -> None:
    prompt = "Repeat: añ 猫 🐈 ж"
    inputs = {"text_input": prompt, "sampling_parameters": GREEDY}
    assert infer(client, "sync", inputs).text == prompt + reference(prompt, **GREEDY)[0].text


# What is sent besides the prompt, and what the error says.
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "temperature": ({"sampling_parameters": {"temperature": -1}}, {}, ["temperature", "-1"]),
    "text for a number": ({"sampling_parameters": {"top_p": "much"}}, {}, ["top_p", "much"]),
    "a float for an integer": ({"sampling_parameters": {"max_tokens": 1.5}}, {}, ["max_tokens", "1.5"]),
    "a list for a number": ({"sampling_parameters": {"top_k": [1]}}, {}, ["top_k"]),
    "numbers among stop strings": ({"sampling_parameters": {"stop": [1]}}, {}, ["stop"]),
    "n": ({"sampling_parameters": {"n": 0}}, {}, ["n must", "0"]),
    "no JSON": ({"sampling_parameters": "temperature=0"}, {}, ["sampling_parameters"]),
    "no object": ({"sampling_parameters": "[1]"}, {}, ["sampling_parameters"]),
    "unknown field": ({"sampling_parameters": {"temprature": 0}}, {}, ["temprature"]),
    "output_kind": ({"sampling_parameters": {"output_kind": 1}}, {}, ["output_kind"]),
    "unknown parameter": ({}, {"temprature": 0.5}, ["temprature"]),
    "ill-typed parameter": ({}, {"temperature": "warm"}, ["temperature", "warm"]),
    "stream": ({"stream": True}, {}, ["stream"]),
    "lora": ({"lora_name": "adapter"}, {}, ["lora_name", "adapter"]),
    "deadline": ({"sampling_parameters": {"deadline_ms": -5}}, {}, ["deadline_ms", "-5"]),
    "both prompts": ({"input_ids": [1]}, {}, ["text_input", "input_ids"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_by_name(client: Any, case: str) -> None:
    inputs, parameters, words = BAD[case]
    error = error_of(client, "sync", {"text_input": PROMPT, **inputs}, parameters)
    assert "400" in error or "INVALID_ARGUMENT" in error
    assert all(word in error for word in words), error


def test_a_request_without_prompt_is_refused(client: Any) -> None:
    error = error_of(client, "sync", {"return_finish_reason": True})
    assert "text_input" in error and "input_ids" in error


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"text_input": ""}, ["empty"]),
        ({"input_ids": [4096]}, ["4096"]),
        ({"input_ids": [-1]}, ["-1"]),
        ({"input_ids": [5] * 2048}, ["2048"]),
        ({"text_input": b"\xff\xfe"}, ["UTF-8"]),
    ],
)
def test_a_bad_prompt_is_refused(client: Any, prompt: dict[str, Any], words: list[str]) -> None:
    error = error_of(client, "sync", prompt)
    assert "400" in error or "INVALID_ARGUMENT" in error
    assert all(word in error for word in words), error


def test_a_refused_request_leaves_the_next_one_alone(client: Any, reference: Reference) -> None:
    error_of(client, "sync", {"text_input": ""})
    inputs = {"text_input": PROMPT, "sampling_parameters": GREEDY, **ONLY_NEW}
    assert infer(client, "sync", inputs).text == reference(PROMPT, **GREEDY)[0].text


def test_the_same_request_is_accounted_for_as_in_python(
    server: TritonServer, client: Any, demo_model: Path
) -> None:
    """Greedy, so that both doors compute the same tokens. The prompt opens the block of reasoning."""
    parameters = {name: json.dumps(ids) for name, ids in THINK.items()}
    server.write_model("thinking", {"model": demo_model, **ENGINE, **parameters}, decoupled=False)
    server.load("thinking")
    try:
        llm = LLM(demo_model, num_threads=1, **THINK)
        prompt = [*range(100, 140), 300, 301, 50]
        answer = llm.generate(
            [prompt], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False
        )[0].outputs[0]
        middle, last = answer.token_ids[5], answer.token_ids[8]
        for sampling in (
            {"max_tokens": 12},
            {"max_tokens": 12, "stop_token_ids": [last]},
            {"max_tokens": 9, "logit_bias": {"302": 100.0}},
            {"max_tokens": 6, "n": 2, "max_thinking_tokens": 3},
            {"max_tokens": 12, "logprobs": 1, "stop_token_ids": [middle]},
        ):
            fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True, **sampling}
            python: dict[str, Any] = {**fields}
            if "logit_bias" in python:
                python["logit_bias"] = {302: 100.0}
            llm.reset_prefix_cache()
            [expected] = llm.generate([prompt], SamplingParams(**python), use_tqdm=False)
            inputs = {
                "input_ids": prompt,
                "sampling_parameters": {**fields, "cache_salt": json.dumps(sampling)},
                "return_usage": True,
                "return_finish_reason": True,
                "return_cumulative_logprob": True,
            }
            [told] = [infer(client, "thinking", inputs).outputs]
            usage = json.loads(told["usage"][0])
            if "n" not in sampling:  # one completion may find what another one has just computed
                assert usage["cached_tokens"] == expected.usage.num_cached_tokens
            assert usage["prompt_tokens"] == expected.usage.num_prompt_tokens == 43
            assert usage["completion_tokens"] == expected.usage.num_generation_tokens
            assert usage["reasoning_tokens"] == expected.usage.num_reasoning_tokens
            assert (usage["reasoning_tokens"] > 0) == ("logit_bias" not in sampling)  # which ends it at once
            assert usage["stop_reasons"] == [o.stop_reason for o in expected.outputs]
            assert told["finish_reason"] == [o.finish_reason for o in expected.outputs]
            if "logprobs" in sampling:
                assert told["cumulative_logprob"] == [
                    pytest.approx(o.cumulative_logprob, rel=1e-5) for o in expected.outputs
                ]
            times = [usage[name] for name in ("queued_time", "prefill_time", "decode_time")]
            assert min(times) >= 0 and usage["mean_time_per_output_token"] > 0
            assert usage["first_token_latency"] == pytest.approx(times[0] + times[1])
            assert usage["inference_time"] == pytest.approx(times[1] + times[2])
    finally:
        server.unload("thinking")
