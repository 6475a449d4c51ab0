"""Parsers of reasoning and tool calls, as Python sees them."""
# ruff: noqa: RUF001  (markers hold look-alike characters)

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from quire import ChatDelta, ChatFormat, ChatParser, Tokenizer
from quire._core import ChatTemplate
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


def test_the_end_of_a_prompt_tells_whether_the_model_thinks() -> None:
    chat_format = ChatFormat(reasoning_parser="qwen3", tool_parser="hermes")
    assert chat_format.thinks_after("<|im_start|>assistant\n<think>\n") is True
    assert chat_format.thinks_after("<|im_start|>assistant\n<think>\n\n</think>\n\n") is False
    for prompt in ("", "<think>a</think>b", "<|im_start|>assistant\n", "think>", " \n"):
        assert chat_format.thinks_after(prompt) is None
    assert ChatFormat(tool_parser="hermes").thinks_after("<think>") is None


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


PYTHONIC = {"lfm2", "llama4_pythonic", "olmo3", "pythonic"}


def written(form: Any, choose: random.Random) -> str:
    """A text that a structural tag allows."""
    kind = form["type"]
    if kind == "const_string":
        return str(form["value"])
    if kind == "sequence":
        return "".join(written(element, choose) for element in form["elements"])
    if kind == "or":
        return written(choose.choice(form["elements"]), choose)
    if kind == "optional":
        return written(form["content"], choose) if choose.random() < 0.5 else ""
    if kind == "tag":
        return f"{form['begin']}{written(form['content'], choose)}{form['end']}"
    if kind == "tags_with_separator":
        assert form["at_least_one"]
        count = 1 if form["stop_after_first"] else choose.randrange(1, 4)
        return str(form["separator"]).join(written(choose.choice(form["tags"]), choose) for _ in range(count))
    if kind == "json_schema":
        return written_json(form["json_schema"], form.get("style", "json"))
    texts = {
        "any_text": "Hm. <x>",
        "regex": {"\\d{1,4}": "0", "\\n{0,2}": "\n\n"}.get(form.get("pattern", "")),
    }
    return str(texts[kind])


def written_json(schema: dict[str, Any], style: str) -> str:
    if schema.get("type") != "object":
        return {"string": '"Łódź"', "integer": "2"}[schema["type"]]
    values = {"city": "Łódź", "days": 2} if schema["properties"] else {}
    if style == "json":
        return json.dumps(values)
    form = {
        "qwen_xml": "<parameter={0}>{1}</parameter>",
        "glm_xml": "<arg_key>{0}</arg_key><arg_value>{1}</arg_value>",
        "minimax_xml": '<parameter name="{0}">{1}</parameter>',
        "deepseek_xml": '<｜DSML｜parameter name="{0}" string="{2}">{1}</｜DSML｜parameter>',
    }[style]
    return "\n".join(form.format(k, v, str(isinstance(v, str)).lower()) for k, v in values.items())


@pytest.mark.parametrize("tool_parser", ChatFormat.tool_parsers())
def test_what_a_structural_tag_allows_is_parsed(tool_parser: str) -> None:
    rng = random.Random(1)
    for reasoning_parser in (
        [None, "qwen3", "mistral"] if tool_parser != "openai" else [None, "openai_gptoss"]
    ):
        chat_format = ChatFormat(reasoning_parser=reasoning_parser, tool_parser=tool_parser)
        for name, parallel in [(None, True), (None, False), ("noop", True), ("get_weather", True)]:
            tag = json.loads(chat_format.structural_tag(TOOLS, name=name, parallel_tool_calls=parallel))
            assert tag["type"] == "structural_tag"
            for _ in range(20):
                text = written(tag["format"], rng)
                answer = chat_format.parse(text, tools=TOOLS)
                assert not answer.content.strip(), text
                assert answer.reasoning in ("", "Hm. <x>")
                assert 1 <= len(answer.tool_calls) <= (3 if parallel and name is None else 1)
                for call in answer.tool_calls:
                    assert call.name == name or name is None
                    if tool_parser in PYTHONIC:  # whose optional arguments are chosen
                        assert json.loads(call.arguments).get("days", 2) == 2
                    else:
                        wanted = {"city": "Łódź", "days": 2} if call.name == "get_weather" else {}
                        assert json.loads(call.arguments) == wanted, text


@pytest.mark.parametrize(
    ("template", "parsers", "end"),
    [
        ("qwen3", {"reasoning_parser": "qwen3", "tool_parser": "hermes"}, "<|im_end|>"),
        ("llama3", {"tool_parser": "llama3_json"}, "<|eot_id|>"),
        ("mistral", {"tool_parser": "mistral"}, "</s>"),
    ],
)
def test_what_a_chat_template_writes_is_parsed(
    template: str, parsers: dict[str, Any], end: str, tmp_path: Path
) -> None:
    source = (Path(__file__).parent / "chat_templates" / f"{template}.jinja").read_text("utf-8")
    (tmp_path / "chat_template.jinja").write_text(source, "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    chat_template = ChatTemplate(str(tmp_path))
    user: dict[str, Any] = {"role": "user", "content": "Wie ist das Wetter?"}
    wanted = {"city": 'Łódź "[{', "days": 2}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": wanted}}
    prompt = chat_template.render([user], tools=TOOLS, add_generation_prompt=True)
    assistant = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    whole = chat_template.render([user, assistant], tools=TOOLS, add_generation_prompt=False)
    assert whole.startswith(prompt)
    answer = ChatFormat(**parsers).parse(whole[len(prompt) :].split(end)[0], tools=TOOLS)
    assert not answer.content.strip()
    assert answer.reasoning.strip() == ("Hm." if "reasoning_parser" in parsers else "")
    found = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
    assert found == [("get_weather", wanted)]


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
