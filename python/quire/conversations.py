"""Conversations on their way to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quire import _core
from quire._core import SamplingParams
from quire.prompts import Message
from quire.values import describe, sampling_params_value, text_value, to_json, values_for_each


class ChatFormats:
    """How the model of an engine writes calls and reasoning, by the names of parsers; each is made once."""

    def __init__(self, engine: _core.EngineBase) -> None:
        self._engine = engine
        self._formats: dict[tuple[str, str], _core.ChatFormat] = {}

    def get(self, reasoning_parser: str | None, tool_parser: str | None) -> _core.ChatFormat:
        names = (
            text_value("reasoning_parser", reasoning_parser or ""),
            text_value("tool_parser", tool_parser or ""),
        )
        if names not in self._formats:
            self._formats[names] = _core.chat_format_of(self._engine, *names)
        return self._formats[names]


def prepare_conversations(
    engine: _core.EngineBase,
    formats: ChatFormats,
    conversations: list[Sequence[Message]],
    sampling_params: SamplingParams | Iterable[SamplingParams] | None,
    default: Callable[[], SamplingParams],
    *,
    chat_template: str | None,
    chat_template_content_format: str,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    tools: Iterable[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    parallel_tool_calls: bool,
    tool_parser: str | None,
    reasoning_parser: str | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> tuple[list[str | list[int]], list[SamplingParams]]:
    """The prompt and the parameters of each conversation; ``LLM.chat`` says what is asked."""
    switches = {
        "chat_template_content_format": (chat_template_content_format, "auto"),
        "continue_final_message": (continue_final_message, False),
        "add_generation_prompt": (add_generation_prompt, None),
        "parallel_tool_calls": (parallel_tool_calls, True),
    }
    fields: dict[str, Any] = {
        name: value for name, (value, default) in switches.items() if value is not default
    }
    tools_json = ""
    if chat_template is not None:
        fields["chat_template"] = text_value("chat_template", chat_template)
    if tools is not None:
        if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
            raise TypeError(f"tools must be a list of objects, got {describe(tools)}")
        tools_json = to_json("tools", list(tools))
    if tool_choice is not None:
        if not isinstance(tool_choice, (str, Mapping)):
            raise TypeError(f"tool_choice must be a string or a mapping, got {describe(tool_choice)}")
        fields["tool_choice"] = tool_choice
    if chat_template_kwargs is not None:
        if not isinstance(chat_template_kwargs, Mapping):
            raise TypeError(f"chat_template_kwargs must be a mapping, got {describe(chat_template_kwargs)}")
        fields["chat_template_kwargs"] = dict(chat_template_kwargs)
    fields_json = to_json("chat arguments", fields)
    chat_format = formats.get(reasoning_parser, tool_parser)
    params = params_list(sampling_params, len(conversations), default)
    prompts: list[str | list[int]] = []
    for i, conversation in enumerate(conversations):
        name = f"messages[{i}]" if len(conversations) > 1 else "messages"
        messages_json = to_json(name, list(conversation))
        try:
            prompt, changed = _core.prepare_chat(
                engine, messages_json, tools_json, fields_json, params[i], chat_format
            )
        except ValueError as error:
            if len(conversations) == 1:
                raise
            raise ValueError(f"{name}: {error}") from None
        prompts.append(prompt)
        params[i] = params[i] if changed is None else changed
    return prompts, params


def params_list(
    given: SamplingParams | Iterable[SamplingParams] | None,
    num_prompts: int,
    default: Callable[[], SamplingParams],
) -> list[SamplingParams]:
    """The parameters of each request, from those for all or one for each."""
    expected = "SamplingParams, one or one for each prompt"
    if not isinstance(given, Iterable):
        return [sampling_params_value(given, default, expected)] * num_prompts
    values = values_for_each("sampling_params", given, num_prompts)
    return [sampling_params_value(value, default, expected) for value in values]
