"""The forms a prompt may take."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypedDict, TypeGuard

from quire.values import INT32, describe, text_value


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: Iterable[SupportsIndex]


Prompt: TypeAlias = "str | Iterable[SupportsIndex] | TextPrompt | TokensPrompt"
Message: TypeAlias = Mapping[str, object]

_FORMS = "a string, token ids, or {'prompt': ...} or {'prompt_token_ids': ...}"


def prompt_content(prompt: object, name: str = "prompt") -> str | list[int]:
    """Returns a prompt's text or token ids. Raises ValueError or TypeError, naming it, if it has neither."""
    if isinstance(prompt, str):
        return text_value(name, prompt)
    if isinstance(prompt, Mapping):
        keys = list(prompt)
        if len(keys) != 1 or keys[0] not in ("prompt", "prompt_token_ids"):
            raise ValueError(
                f"{name}: a prompt dictionary must hold either 'prompt' or 'prompt_token_ids', "
                f"got {keys!r:.60}"
            )
        return prompt_content(prompt[keys[0]], f"{name}[{keys[0]!r}]")
    return _token_ids(_items(prompt, name, _FORMS), name)


def prompt_list(prompts: object) -> list[str | list[int]]:
    """Returns one entry for each prompt; a single prompt counts as a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompt_content(prompts, "prompts")]
    items = _items(prompts, "prompts", f"{_FORMS}; or several of them")
    if items and _is_token_id(items[0]):
        return [_token_ids(items, "prompts")]
    return [prompt_content(prompt, f"prompts[{i}]") for i, prompt in enumerate(items)]


def is_conversation(prompt: object) -> TypeGuard[Sequence[Message]]:
    """Whether this is a list of messages rather than a prompt."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def conversation_list(messages: object) -> list[Sequence[Message]]:
    """Returns one entry for each conversation; a single one counts as a list of one."""
    expected = "a list of messages like {'role': 'user', 'content': ...}"
    if isinstance(messages, (str, Mapping)):
        raise TypeError(f"messages must be {expected}, got {describe(messages)}")
    items = _items(messages, "messages", expected + ", or several such lists")
    if is_conversation(items):
        return [items]
    conversations: list[Sequence[Message]] = []
    for i, item in enumerate(items):
        if isinstance(item, (str, Mapping)):
            raise TypeError(f"messages[{i}] must be {expected}, got {describe(item)}")
        conversations.append(_items(item, f"messages[{i}]", expected))
    return conversations


def _items(value: Any, name: str, expected: str) -> list[Any]:
    """What is in any iterable, an iterator or a NumPy array included: read once, here."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be {expected}, got {describe(value)}; decode it first")
    if hasattr(value, "columns"):
        raise TypeError(f"{name} must be {expected}, got a table ({type(value).__name__}); give one column")
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} must be {expected}, got {describe(value)}") from None


def _is_token_id(value: Any) -> bool:
    # An array of one element has an __index__ too.
    return hasattr(value, "__index__") and not getattr(value, "ndim", 0)


def _token_ids(values: list[Any], name: str) -> list[int]:
    ids = []
    for i, value in enumerate(values):
        if not _is_token_id(value):
            raise TypeError(f"{name}[{i}] must be a token id, a whole number, got {describe(value)}")
        token = operator.index(value)
        if not INT32[0] <= token <= INT32[1]:
            raise ValueError(f"{name}[{i}] is {describe(token)}; token ids are below the vocabulary's size")
        ids.append(token)
    return ids
