"""Messages as clients send them: every door renders them alike, and refuses alike what it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, SamplingParams
from quire._core import ChatTemplate

TEMPLATES = Path(__file__).parent / "chat_templates"
USER = {"role": "user", "content": "Hi"}
ARGUMENTS = {"city": 'Łódź "x"', "days": [1, 2.5]}
WEATHER = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
AS_TEXT = {
    **WEATHER,
    "index": 0,
    "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)},
}
ODD: dict[str, list[dict[str, Any]]] = {
    "no content": [{"role": "user"}],
    "content None": [USER, {"role": "assistant", "content": None}, USER],
    "content None beside calls": [USER, {"role": "assistant", "content": None, "tool_calls": [WEATHER]}],
    "an empty content": [{"role": "user", "content": ""}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "no parts": [{"role": "user", "content": []}],
    "unknown keys": [{**USER, "name": "Ann", "weight": 3, "x": {"y": [None]}}],
    "a result without tool_call_id": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [WEATHER]},
        {"role": "tool", "content": "sunny"},
    ],
    "a result in parts": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [WEATHER]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": [{"type": "text", "text": "sunny"}]},
    ],
    "an unknown role": [{"role": "wizard", "content": "Abracadabra"}],
    "a role that is none": [{"role": "", "content": "x"}],
    "reasoning": [USER, {"role": "assistant", "reasoning": "Hm.", "content": "Yes."}, USER],
    "system last": [USER, {"role": "system", "content": "Be brief."}],
    "twice the same role": [USER, USER],
    "no calls": [USER, {"role": "assistant", "content": "a", "tool_calls": []}, USER],
    "calls None": [USER, {"role": "assistant", "content": "a", "tool_calls": None}, USER],
    "special tokens": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}],
}
MALFORMED: dict[str, tuple[Any, str]] = {
    "no messages": ([], "messages must hold at least one message"),
    "a list within": ([[USER]], r"messages\[0\] must be an object, got list"),
    "no role": ([USER, {"content": "x"}], r"messages\[1\]\.role is missing"),
    "role None": ([{"role": None, "content": "x"}], r"messages\[0\]\.role is missing"),
    "role 5": ([{"role": 5}], r"messages\[0\]\.role must be a string, got int"),
    "content 5": (
        [{"role": "user", "content": 5}],
        r"messages\[0\]\.content must be a string or a list of parts",
    ),
    "content an object": (
        [{"role": "user", "content": {}}],
        r"messages\[0\]\.content must be a string or a list",
    ),
    "a string among parts": (
        [{"role": "user", "content": ["x"]}],
        r"messages\[0\]\.content\[0\] must be an object",
    ),
    "a part without text": (
        [{"role": "user", "content": [{"type": "text"}]}],
        r'messages\[0\]\.content\[0\] has no string "text"',
    ),
}


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model, num_threads=1)


# Some templates write them; the demo model has no BOS.
TOKENS: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}


def outcome(render: Any) -> tuple[str, str]:
    """What was rendered, or the complaint."""
    try:
        return ("rendered", str(render()))
    except ValueError as error:
        return ("refused", str(error))


def chat_prompt(llm: LLM, messages: list[dict[str, Any]], template: str | None) -> str:
    params = SamplingParams(max_tokens=1)
    arguments: dict[str, Any] = {
        "chat_template": template,
        "chat_template_kwargs": TOKENS if template else None,
    }
    (output,) = llm.chat([messages], params, use_tqdm=False, **arguments)
    assert output.prompt is not None
    return output.prompt


@pytest.mark.parametrize("template", [path.name for path in sorted(TEMPLATES.glob("*.jinja"))])
def test_doors_agree_on_odd_messages(llm: LLM, template: str) -> None:
    source = (TEMPLATES / template).read_text("utf-8")
    rendered = 0
    for name, messages in ODD.items():
        direct = outcome(lambda messages=messages: llm.apply_chat_template(messages, source, **TOKENS))
        chat = outcome(lambda messages=messages: chat_prompt(llm, messages, source))
        if name == "no calls":  # is as if they were not mentioned
            without = [{k: v for k, v in message.items() if k != "tool_calls"} for message in messages]
            assert chat == outcome(lambda without=without: chat_prompt(llm, without, source))
        elif chat != direct:  # a prompt of nothing has nothing to go on with
            assert direct == ("rendered", ""), (name, chat, direct)
            assert "empty prompt" in chat[1]
        if direct[0] == "refused":  # by the template's own words, or by where in it
            assert "chat template" in direct[1] or "chat_template: line" in direct[1], (name, direct)
        rendered += direct[0] == "rendered"
    assert rendered > len(ODD) / 2


def test_a_template_loaded_alone_agrees(llm: LLM, demo_model: Path) -> None:
    template = ChatTemplate(str(demo_model))
    for name, messages in ODD.items():
        alone = outcome(lambda messages=messages: template.render(messages))
        assert outcome(lambda messages=messages: chat_prompt(llm, messages, None)) == alone, name


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_messages_are_named_by_every_door(llm: LLM, demo_model: Path, name: str) -> None:
    messages, complaint = MALFORMED[name]
    template = ChatTemplate(str(demo_model))
    for render in (
        lambda: template.render(messages),
        lambda: llm.apply_chat_template(messages),
        lambda: llm.chat([messages] if messages else [[]], use_tqdm=False),
    ):
        with pytest.raises(ValueError, match=complaint):
            render()


@pytest.mark.parametrize("template", ["llama3.jinja", "mistral.jinja", "qwen3.jinja", "deepseek.jinja"])
def test_arguments_of_earlier_calls_may_be_text(llm: LLM, template: str) -> None:
    """OpenAI's API has them as text; most templates write objects as JSON."""
    source = (TEMPLATES / template).read_text("utf-8")

    def conversation(call: dict[str, Any]) -> list[dict[str, Any]]:
        result = {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny"}
        return [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]

    with_text = chat_prompt(llm, conversation(AS_TEXT), source)
    written = llm.apply_chat_template(conversation(WEATHER), source, **TOKENS)
    assert with_text == written
    assert '"city"' in with_text and "\\\\" not in with_text
