"""The forms a prompt may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict, TypeGuard


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


Prompt: TypeAlias = "str | Sequence[int] | TextPrompt | TokensPrompt"
Message: TypeAlias = Mapping[str, object]


def prompt_content(prompt: Prompt) -> str | list[int]:
    """Returns a prompt's text or token ids. Raises ValueError or TypeError if it has neither."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown or len(prompt) != 1:
            raise ValueError(
                f"a prompt dictionary must hold either 'prompt' or 'prompt_token_ids', got {sorted(prompt)}"
            )
        return prompt_content(next(iter(prompt.values())))  # type: ignore[arg-type]
    if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt):
        return [int(token) for token in prompt]
    raise TypeError(f"a prompt must be a string or a list of token ids, got {prompt!r:.80}")


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """Returns one entry for each prompt; a single prompt counts as a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompt_content(prompts)]
    if prompts and all(isinstance(token, int) for token in prompts):
        return [prompt_content(prompts)]  # type: ignore[arg-type]
    return [prompt_content(prompt) for prompt in prompts]  # type: ignore[arg-type]


def is_conversation(prompt: Prompt | Sequence[Message]) -> TypeGuard[Sequence[Message]]:
    """Whether this is a list of messages rather than a prompt."""
    return not isinstance(prompt, (str, Mapping)) and bool(prompt) and isinstance(prompt[0], Mapping)
