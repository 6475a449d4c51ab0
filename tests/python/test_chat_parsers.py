"""Parsers of reasoning and tool calls, as Python sees them."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from quire import ChatDelta, ChatFormat, ChatParser, Tokenizer
from tokenizer_families import train
from tokenizers import pre_tokenizers

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop"}},
]

ANSWER = (
    "<think>\nDie Fähre 🦊?\n</think>\n\nI look it up.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź </tool_call>", "days": 2}}\n'
    "</tool_call>\n"
    '<tool_call>\n{"name": "noop", "arguments": {}}\n</tool_call>'
)


def joined(parser: ChatParser, pieces: list[str]) -> dict[str, Any]:
    """The answer, put together as a client would."""
    answer: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    for delta in [*map(parser.append, pieces), parser.finish()]:
        answer["reasoning"] += delta.reasoning
        answer["content"] += delta.content
        for call in delta.tool_calls:
            if call.id:
                assert call.index == len(answer["calls"])
                answer["calls"].append([call.name, ""])
            answer["calls"][call.index][1] += call.arguments
    return answer


def test_an_answer_is_the_same_however_it_comes() -> None:
    chat_format = ChatFormat(reasoning_parser="qwen3", tool_parser="hermes")
    whole = chat_format.parse(ANSWER, tools=TOOLS)
    assert whole.reasoning == "\nDie Fähre 🦊?\n"
    assert whole.content == "\n\nI look it up.\n"
    assert [call.name for call in whole.tool_calls] == ["get_weather", "noop"]
    assert json.loads(whole.tool_calls[0].arguments) == {"city": "Łódź </tool_call>", "days": 2}
    assert len({call.id for call in whole.tool_calls}) == 2
    rng = random.Random(1)
    for _ in range(200):
        cuts = sorted(rng.choices(range(len(ANSWER)), k=rng.randrange(20)))
        pieces = [ANSWER[a:b] for a, b in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True)]
        answer = joined(chat_format.parser(tools=TOOLS), pieces)
        assert (answer["reasoning"], answer["content"]) == (whole.reasoning, whole.content)
        assert answer["calls"] == [[call.name, call.arguments] for call in whole.tool_calls]


def test_a_parser_can_be_made_by_itself() -> None:
    parser = ChatParser(tool_parser="hermes", tools=TOOLS)
    delta = parser.append('Yes. <tool_call>{"name": "noop", "arguments": {"a"')
    assert delta
    assert (delta.content, delta.tool_calls[0].arguments) == ("Yes. ", '{"a"')
    assert pickle.loads(pickle.dumps(delta)) == delta
    assert not parser.append("")
    assert ChatParser(tool_parser="hermes", parse_tool_calls=False).append(ANSWER).content == ANSWER
    assert ChatParser(reasoning_parser="qwen3", enable_thinking=False).append("Yes.").content == "Yes."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    special = ["<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf = train(split=[], byte_level=byte_level, special=special)
    hf.save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


def test_special_tokens_that_are_not_the_formats_own_are_taken_out(tokenizer: Tokenizer) -> None:
    assert ChatFormat(tokenizer=tokenizer).skip_special_tokens
    chat_format = ChatFormat(reasoning_parser="qwen3", tool_parser="hermes", tokenizer=tokenizer)
    assert not chat_format.skip_special_tokens
    answer = chat_format.parse(ANSWER.replace("look", "l<|im_end|>ook") + "<|im_end|>")
    assert answer.content == "\n\nI look it up.\n"
    assert [call.name for call in answer.tool_calls] == ["get_weather", "noop"]
    # Where calls are not parsed, their markers are special tokens like others.
    assert "<tool_call>" not in chat_format.parse(ANSWER, parse_tool_calls=False).content


def test_tokens_of_reasoning_are_counted_by_id(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(ANSWER)
    end = ids.index(tokenizer.token_to_id("</think>") or -1)
    parser = ChatParser(reasoning_parser="qwen3", tool_parser="hermes", tokenizer=tokenizer)
    for i, token_id in enumerate(ids):
        parser.append("", [token_id])
        assert parser.num_reasoning_tokens == max(0, min(i, end - 1))
    # The prompt has the first marker.
    parser = ChatParser(reasoning_parser="qwen3", tokenizer=tokenizer)
    parser.append("", ids[1:])
    assert parser.num_reasoning_tokens == end - 1
    parser = ChatParser(reasoning_parser="qwen3", tokenizer=tokenizer, enable_thinking=False)
    parser.append("", ids[1:])
    assert parser.num_reasoning_tokens == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"tool_parser": "herms"}, r"tool_parser 'herms' is not known; there are .*hermes"),
        ({"reasoning_parser": "x"}, r"reasoning_parser 'x' is not known; there are .*qwen3"),
        ({"tools": [{}]}, r"tools\[0\].function must be an object"),
        ({"tools": [{"function": {"name": 3}}]}, r"tools\[0\].function.name must be a string"),
        ({"tools": [{"function": {"name": "f", "parameters": 3}}]}, r"parameters must be an object"),
        ({"tool_parser": "\ud800"}, r"tool_parser must be valid Unicode"),
    ],
)
def test_what_is_not_known_is_refused_by_name(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ChatParser(**arguments)


@pytest.mark.parametrize("name", ["reasoning_parser", "tool_parser", "tokenizer", "tools"])
def test_a_value_of_another_type_is_refused_by_name(name: str) -> None:
    arguments: dict[str, Any] = {name: 3}
    with pytest.raises(TypeError, match=rf"{name} must be .*, got 3 \(int\)"):
        ChatParser(**arguments)


def test_a_delta_shows_what_is_in_it() -> None:
    delta: ChatDelta = ChatParser().append("Hi")
    assert repr(delta) == "ChatDelta(reasoning='', content='Hi', tool_calls=[])"


def test_structural_tags_name_the_tools() -> None:
    chat_format = ChatFormat(tool_parser="hermes")
    assert "noop" in chat_format.structural_tag(TOOLS)
    assert "noop" not in chat_format.structural_tag(TOOLS, name="get_weather")
    for tools, name, complaint in [
        ([], None, "tools is empty"),
        (TOOLS, "f", "tool_choice 'f' is none of the tools"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            chat_format.structural_tag(tools, name=name)
    with pytest.raises(ValueError, match="needs a tool_parser"):
        ChatFormat().structural_tag(TOOLS)
