"""LLM.chat with tools that the model must call: a grammar makes any model write calls in any format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from quire import LLM, ChatDelta, ChatFormat, CompletionOutput, SamplingParams, StructuredOutputsParams

HELLO = {"role": "user", "content": "What is the weather in Oslo?"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of the coming days.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Łódź", 'Oslo "x"']},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop"}},
]
EMPTY: dict[str, Any] = {"type": "object", "additionalProperties": False}
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", EMPTY) for tool in TOOLS}
# Warm, so that calls differ, and without thoughts, which nothing would end.
PARAMS = SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=400)
NO_THOUGHTS = {"enable_thinking": False}


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, num_threads=1)


def answers(
    llm: LLM, tool_parser: str, params: SamplingParams = PARAMS, **arguments: Any
) -> Iterator[tuple[CompletionOutput, ChatDelta]]:
    """Each completion, and what is read from it."""
    arguments = {"tools": TOOLS, "chat_template_kwargs": NO_THOUGHTS, **arguments}
    (output,) = llm.chat([HELLO], params, use_tqdm=False, tool_parser=tool_parser, **arguments)
    chat_format = ChatFormat(tool_parser=tool_parser, reasoning_parser=arguments.get("reasoning_parser"))
    for completion in output.outputs:
        yield completion, chat_format.parse(completion.text, tools=TOOLS)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("tool_parser", ChatFormat.tool_parsers())
def test_a_forced_call_fits_its_schema(llm: LLM, tool_parser: str) -> None:
    for choice in ("required", named("get_weather"), named("noop")):
        arguments: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": False}
        for completion, answer in answers(llm, tool_parser, **arguments):
            assert completion.finish_reason == "stop", completion.text
            assert not answer.content.strip(), completion.text
            (call,) = answer.tool_calls
            assert choice in ("required", named(call.name))
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("tool_parser", ["hermes", "pythonic"])
def test_several_calls_may_be_required(llm: LLM, tool_parser: str) -> None:
    params = SamplingParams(temperature=1.0, seed=5, n=16, max_tokens=400)
    counts = set()
    for completion, answer in answers(llm, tool_parser, params, tool_choice="required"):
        assert answer.tool_calls
        counts.add(len(answer.tool_calls))
        if completion.finish_reason != "stop":  # it went on and on
            continue
        for call in answer.tool_calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert max(counts) > 1


def test_the_model_may_think_first(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=100)
    arguments: dict[str, Any] = {"tool_choice": named("noop"), "reasoning_parser": "qwen3"}
    ((completion, answer),) = answers(llm, "hermes", params, **arguments)
    assert not answer.reasoning
    assert [call.name for call in answer.tool_calls] == ["noop"], completion.text
    arguments["chat_template_kwargs"] = {"enable_thinking": True}
    ((completion, answer),) = answers(llm, "hermes", params, **arguments)
    assert answer.reasoning  # which the demo model does not end
    assert completion.finish_reason == "length"


def test_parameters_of_one_conversation_are_its_own(llm: LLM) -> None:
    conversations = [[HELLO], [HELLO]]
    params = [SamplingParams(max_tokens=60, seed=1), SamplingParams(max_tokens=1, seed=1)]
    outputs = llm.chat(
        conversations, params, use_tqdm=False, tools=TOOLS, tool_choice=named("noop"), tool_parser="hermes"
    )
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "length"]
    assert params[0].structured_outputs is None, "what the caller gave stays as it was"


def test_a_free_choice_leaves_the_answer_as_it_is(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    plain = llm.chat([HELLO], params, use_tqdm=False, tools=TOOLS)[0].outputs[0]
    for choice in ("auto", "none"):
        (output,) = llm.chat(
            [HELLO], params, use_tqdm=False, tools=TOOLS, tool_choice=choice, tool_parser="hermes"
        )
        assert output.outputs[0].token_ids == plain.token_ids


def test_what_cannot_be_chosen_is_refused_by_name(llm: LLM) -> None:
    regex = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"tool_choice": "required", "tool_parser": None},
            "set the parameter tool_parser to one of .*hermes",
        ),
        ({"tool_choice": "must"}, 'tool_choice must be "auto", "none", "required" or'),
        ({"tool_choice": {"type": "function"}}, "tool_choice must be"),
        ({"tool_choice": named("f")}, "tool_choice 'f' is none of the tools"),
        ({"tool_choice": "required", "tools": None}, "there are no tools"),
        ({"tool_choice": "required", "sampling_params": regex}, "so does structured_outputs"),
        ({"tool_choice": "required", "tools": [{"name": "f"}]}, r"tools\[0\].function must be an object"),
        ({"tool_parser": "herms"}, "tool_parser 'herms' is not known"),
        ({"reasoning_parser": "x"}, "reasoning_parser 'x' is not known"),
    ]
    steps = llm.stats().num_steps
    for arguments, complaint in cases:
        given: dict[str, Any] = {"tools": TOOLS, "tool_parser": "hermes", **arguments}
        with pytest.raises(ValueError, match=complaint):
            llm.chat([HELLO], use_tqdm=False, **given)
    with pytest.raises(TypeError, match="tool_choice must be a string or a mapping, got 3"):
        llm.chat([HELLO], tools=TOOLS, tool_choice=3)  # type: ignore[arg-type]
    assert llm.stats().num_steps == steps
