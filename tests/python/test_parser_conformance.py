"""Whole answers are parsed as vLLM's own parsers do; tests/conformance/record_parsers.py recorded those."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from quire import ChatFormat

RECORDED = json.loads(
    (Path(__file__).parents[1] / "conformance" / "recorded_parsers.json").read_text("utf-8")
)

# Content without white space around it, and calls by name and arguments.
Answer = tuple[str, list[tuple[str, Any]]]


def arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # incomplete


def keeps_text(ours: Answer, theirs: Answer) -> bool:
    """Text beside calls is content; vLLM drops what follows them, and with Llama's all of it."""
    return ours[1] == theirs[1] != [] and theirs[0] == ""


def shows_calls_that_began(ours: Answer, theirs: Answer) -> bool:
    """A call is shown as it is written; when it turns out not to be valid, vLLM makes all of it content."""
    return theirs[1] == [] and any(isinstance(args, str) for _, args in ours[1])


def reads_more(ours: Answer, theirs: Answer) -> bool:
    """Calls that vLLM's patterns miss: brackets and quotes within strings, text before or after."""
    return len(theirs[1]) < len(ours[1]) and all(isinstance(args, dict) for _, args in ours[1])


def keeps_what_is_no_call(ours: Answer, theirs: Answer) -> bool:
    """A marker without a call is content; vLLM drops it."""
    return ours[1] == theirs[1] == [] and theirs[0] == ""


def opens_strings(ours: Answer, theirs: Answer) -> bool:
    """Arguments that are a string are what it holds; vLLM gives the string."""
    return ours[0] == theirs[0] and [(name, dump(args)) for name, args in ours[1]] == theirs[1]


def types_by_schema(ours: Answer, theirs: Answer) -> bool:
    """A text that the schema allows to be a number is one; for Step-3.5 vLLM looks no further than `type`."""
    return as_text(ours) == as_text(theirs)


def as_text(answer: Answer) -> list[tuple[str, object]]:
    return [
        (name, {key: str(value) for key, value in args.items()} if isinstance(args, dict) else args)
        for name, args in answer[1]
    ]


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# How often each may apply.
RULES = {
    opens_strings: 1,
    keeps_text: 7,
    shows_calls_that_began: 5,
    reads_more: 10,
    keeps_what_is_no_call: 1,
    types_by_schema: 1,
}


def test_calls_are_those_that_vllm_finds() -> None:
    applied: Counter[Any] = Counter()
    for sample in RECORDED["tool_calls"]:
        chat_format = ChatFormat(tool_parser=sample["parser"].removesuffix("_pre_v11"))
        found = chat_format.parse(sample["text"], tools=RECORDED["tools"])
        ours = found.content.strip(), [(call.name, arguments(call.arguments)) for call in found.tool_calls]
        answer = sample["answer"]
        theirs = answer["content"].strip(), [(name, arguments(args)) for name, args in answer["calls"]]
        if ours != theirs:
            rule = next((rule for rule in RULES if rule(ours, theirs)), None)
            assert rule, (sample["parser"], sample["text"], ours, theirs)
            applied[rule] += 1
    assert len(RECORDED["tool_calls"]) > 150
    for rule, times in RULES.items():
        assert applied[rule] <= times, rule.__doc__


@pytest.mark.parametrize("sample", RECORDED["whole"], ids=lambda sample: sample["reasoning_parser"])
def test_whole_answers_are_split_as_vllm_does(sample: dict[str, Any]) -> None:
    found = ChatFormat(reasoning_parser=sample["reasoning_parser"], tool_parser=sample["parser"]).parse(
        sample["text"], tools=RECORDED["tools"], enable_thinking=True
    )
    answer = sample["answer"]
    assert (found.reasoning, found.content.strip()) == (answer["reasoning"], answer["content"].strip())
    ours = [(call.name, arguments(call.arguments)) for call in found.tool_calls]
    assert ours == [(name, arguments(args)) for name, args in answer["calls"]]


@pytest.mark.parametrize("sample", RECORDED["reasoning"], ids=lambda sample: sample["parser"])
def test_reasoning_is_what_vllm_takes_for_it(sample: dict[str, Any]) -> None:
    found = ChatFormat(reasoning_parser=sample["parser"], tool_parser="qwen3_coder").parse(
        sample["text"], parse_tool_calls=False
    )
    answer = sample["answer"]
    if "<tool_call>" in answer["content"]:  # which ends Qwen's reasoning where calls are parsed
        found = ChatFormat(reasoning_parser=sample["parser"], tool_parser="longcat").parse(
            sample["text"].replace("tool_call>", "longcat_tool_call>")
        )
        answer["content"] = answer["content"].replace("tool_call>", "longcat_tool_call>")
    assert (found.reasoning, found.content) == (answer["reasoning"], answer["content"])
