"""A seeded random source and a small template language.

Templates hold `{slot}`, `{a slot}` (with its article), `{^slot}` (capitalised) and `[this|that|]`,
which nest. Earlier alternatives are likelier: a model trained on a skewed choice has a clear
favourite, so greedy decoding does not hang on rounding.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_Node = str | tuple[str, str] | list[list["_Node"]]


@cache
def _parse(template: str) -> list[_Node]:
    nodes, end = _parse_until(template, 0, "")
    if end != len(template):
        raise ValueError(f"unbalanced brackets in {template!r}")
    return nodes


def _parse_until(text: str, start: int, stops: str) -> tuple[list[_Node], int]:
    nodes: list[_Node] = []
    literal = start
    i = start
    while i < len(text) and text[i] not in stops:
        if text[i] == "{":
            nodes.append(text[literal:i])
            close = text.index("}", i)
            word = text[i + 1 : close]
            if word.startswith("a "):
                nodes.append(("a", word[2:]))
            elif word.startswith("^"):
                nodes.append(("^", word[1:]))
            else:
                nodes.append(("", word))
            i = literal = close + 1
        elif text[i] == "[":
            nodes.append(text[literal:i])
            options: list[list[_Node]] = []
            i += 1
            while True:
                option, i = _parse_until(text, i, "|]")
                options.append(option)
                if i >= len(text):
                    raise ValueError(f"unbalanced brackets in {text!r}")
                i += 1
                if text[i - 1] == "]":
                    break
            nodes.append(options)
            literal = i
        else:
            i += 1
    nodes.append(text[literal:i])
    return nodes, i


def article(noun: str) -> str:
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def plural(noun: str) -> str:
    if noun.endswith(("s", "sh", "ch", "x", "z", "ato")):
        return noun + "es"
    if noun.endswith("fe"):
        return noun[:-2] + "ves"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def join_words(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


class Rng(random.Random):
    """A random source that also says whether to draw held-out names and numbers."""

    def __init__(self, seed: int, held_out: bool = False) -> None:
        super().__init__(seed)
        self.held_out = held_out

    def skewed(self, options: Sequence[T]) -> T:
        """Any option, the first ones more often."""
        return options[int(len(options) * self.random() ** 2)]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        return self.sample(options, min(count, len(options)))

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def say(self, template: str, slots: Mapping[str, str] | None = None, **more: str) -> str:
        """Expands a template and capitalises its first letter."""
        return capitalise(self.fill(template, slots, **more))

    def fill(self, template: str, slots: Mapping[str, str] | None = None, **more: str) -> str:
        """Expands a template as it stands."""
        values = {**slots, **more} if slots else more
        out: list[str] = []
        self._expand(_parse(template), values, out)
        text = "".join(out)
        # An empty alternative leaves its neighbours' spaces behind.
        return text.replace("  ", " ").strip(" ") if "  " in text or text[-1:] == " " else text

    def _expand(self, nodes: list[_Node], values: Mapping[str, str], out: list[str]) -> None:
        for node in nodes:
            if isinstance(node, str):
                out.append(node)
            elif isinstance(node, tuple):
                value = values[node[1]]
                if node[0] == "a":
                    value = article(value)
                elif node[0] == "^":
                    value = capitalise(value)
                out.append(value)
            else:
                self._expand(self.skewed(node), values, out)
