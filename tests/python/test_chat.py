"""LLM.chat: what vLLM's takes, and nothing in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, SamplingParams
from quire._core import ChatTemplate

PARAMS = SamplingParams(temperature=0, max_tokens=4)
HELLO = {"role": "user", "content": "Hello!"}
NAMES = "{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}{{ mood }}"


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    yield LLM(demo_model)


def prompt_of(llm: LLM, messages: Any, **arguments: Any) -> str:
    (output,) = llm.chat(messages, PARAMS, use_tqdm=False, **arguments)
    assert output.prompt is not None
    return output.prompt


def test_a_template_may_be_given_with_its_variables(llm: LLM) -> None:
    own = prompt_of(llm, [HELLO])
    assert prompt_of(llm, [HELLO], chat_template=NAMES) == "<user:Hello!>"
    arguments: dict[str, Any] = {"chat_template_kwargs": {"mood": "glad"}}
    assert prompt_of(llm, [HELLO], chat_template=NAMES, **arguments) == "<user:Hello!>glad"
    assert prompt_of(llm, [HELLO], chat_template="{{ eos_token }}") == prompt_of(
        llm, [HELLO], chat_template="{{ eos_token }}{# another #}"
    )
    assert prompt_of(llm, [HELLO], chat_template=None, **arguments) == own
    with pytest.raises(ValueError, match="chat_template: line 1"):
        prompt_of(llm, [HELLO], chat_template="{% include 'x' %}")


def test_a_template_may_be_given_where_there_is_none(demo_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(demo_model / name)
    assert prompt_of(LLM(tmp_path), [HELLO], chat_template=NAMES) == "<user:Hello!>"


def test_what_the_prompt_ends_with_can_be_chosen(llm: LLM) -> None:
    whole = prompt_of(llm, [HELLO])
    bare = prompt_of(llm, [HELLO], add_generation_prompt=False)
    assert whole.startswith(bare) and len(whole) > len(bare)
    answer = {"role": "assistant", "content": "Once upon"}
    assert prompt_of(llm, [HELLO, answer], continue_final_message=True) == whole + "Once upon"


def test_tools_reach_the_template(llm: LLM) -> None:
    template = "{{ messages[0].content }}{% for tool in tools %}{{ tool.name }}{% endfor %}"
    assert prompt_of(llm, [HELLO], chat_template=template, tools=[{"name": "clock"}]) == "Hello!clock"


def test_what_is_not_known_is_refused_by_name(llm: LLM) -> None:
    steps = llm.stats().num_steps
    for name, near in (
        ("chat_tempalte", "did you mean 'chat_template'"),
        ("deadline", "did you mean 'deadline_ms'"),
        ("enable_thinking", "see help"),
    ):
        with pytest.raises(TypeError, match=f"LLM.chat has no argument '{name}'; {near}"):
            llm.chat([HELLO], PARAMS, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"chat_template_content_format must be 'auto', .* got"):
        llm.chat([HELLO], PARAMS, chat_template_content_format="x")
    assert llm.stats().num_steps == steps


def test_a_deadline_holds_for_chats(demo_model: Path) -> None:
    llm = LLM(demo_model)  # which cannot know yet that the deadline is too soon
    long = SamplingParams(max_tokens=1900, ignore_eos=True)
    (output,) = llm.chat([HELLO], long, use_tqdm=False, deadline_ms=40, user="a", priority=1)
    assert output.outputs[0].finish_reason == "abort"


PARTS = [{"type": "text", "text": "Hello!"}, {"type": "text", "text": "Who are you?"}]


def test_text_parts_are_joined_for_templates_that_take_strings(llm: LLM) -> None:
    joined = {"role": "user", "content": "Hello!\nWho are you?"}
    in_parts = {"role": "user", "content": PARTS}
    assert prompt_of(llm, [in_parts]) == prompt_of(llm, [joined])
    strings = [
        NAMES,
        "{% for m in messages %}{{ '<' + m['role'] + ':' + m['content'] + '>' }}{% endfor %}",
        "{% for m in messages if m.content is string %}<{{ m.role }}:{{ m.content }}>{% endfor %}",
        "{% for m in messages %}<{{ m.role }}:{{ m.content | trim }}>{% endfor %}",
    ]
    for template in strings:
        rendered = prompt_of(llm, [in_parts], chat_template=template)
        assert rendered == "<user:Hello!\nWho are you?>", template


def test_parts_are_left_to_templates_that_read_them(llm: LLM) -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    message = {"role": "user", "content": PARTS}
    assert prompt_of(llm, [message], chat_template=template) == "[Hello!][Who are you?]"
    forced: dict[str, Any] = {"chat_template": template, "chat_template_content_format": "string"}
    assert prompt_of(llm, [message], **forced) == "Hello!\nWho are you?"
    raw = prompt_of(llm, [message], chat_template=NAMES, chat_template_content_format="openai")
    assert "'type': 'text'" in raw


def test_parts_that_are_no_text_are_named(llm: LLM) -> None:
    parts: list[dict[str, Any]] = [*PARTS, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(ValueError, match=r'messages\[1\]\.content\[2\] has no string "text"'):
        prompt_of(llm, [HELLO, {"role": "user", "content": parts}])


def test_a_final_message_in_parts_can_be_continued(llm: LLM) -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Once upon"}]}
    assert prompt_of(llm, [HELLO, answer], continue_final_message=True).endswith("Once upon")


def test_templates_loaded_alone_join_parts_too(demo_model: Path) -> None:
    template = ChatTemplate(str(demo_model))
    joined = template.render([{"role": "user", "content": "Hello!\nWho are you?"}])
    assert template.render([{"role": "user", "content": PARTS}]) == joined
