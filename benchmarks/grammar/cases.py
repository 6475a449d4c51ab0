"""One hundred JSON schemas of many shapes, and documents that fit them. The same ones each time.

    python benchmarks/grammar/cases.py        # prints them

A shape is a function of a generator of random numbers; it returns a schema and a function that makes
documents.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

NUM_CASES = 100
NUM_DOCUMENTS = 2  # of each schema

Schema = dict[str, Any]
Make = Callable[[], Any]

WORDS = re.findall(
    r"\w+",
    """
    account address amount answer archive author balance batch branch budget calendar campaign category
    channel city client color comment company country created currency customer delivery department
    description device discount duration email employee endpoint event expires feature group height
    history identifier image index invoice item journey key label language latitude length level limit
    location longitude manager measure member message method model month name network notes number offer
    order origin owner package parent partner payment period phone platform position price priority
    product profile project quality quantity quarter rating reason record region report request result
    review role route salary schedule score season section series service session shipment signature
    size source stage status store street subject subscription summary supplier tag target task team
    tenant ticket timeout title total tracking type unit update url user value vendor version volume
    warehouse week weight width window year zone
    """,
)


class Values:
    """Random texts and numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def names(self, count: int) -> list[str]:
        picked = self.rng.sample(WORDS, min(count, len(WORDS)))
        return [word if self.rng.random() < 0.7 else f"{word}_{self.rng.choice(WORDS)}" for word in picked]

    def text(self, max_length: int, escapes: bool = True) -> str:
        extra = ["naïve", "Grüße", "漢字", "C++", "a/b", "50%", "(see below)"]
        extra += ['"quoted"', "one\ntwo", "back\\slash"] if escapes else []
        words: list[str] = []
        while sum(map(len, words)) + len(words) < max_length * 0.8:
            words.append(self.rng.choice(WORDS if self.rng.random() < 0.9 else extra))
        return " ".join(words)[:max_length]

    def digits(self, count: int) -> str:
        return "".join(self.rng.choice("0123456789") for _ in range(count))

    def letters(self, count: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
        return "".join(self.rng.choice(alphabet) for _ in range(count))


def scalar(v: Values) -> tuple[Schema, Make]:
    """A value that is no array and no object."""
    rng = v.rng
    kinds: list[tuple[Schema, Make]] = [
        ({"type": "string"}, lambda: v.text(rng.randint(5, 60))),
        ({"type": "integer"}, lambda: rng.randint(-100_000, 100_000)),
        ({"type": "number"}, lambda: round(rng.uniform(-1000, 1000), 3)),
        ({"type": "boolean"}, lambda: rng.random() < 0.5),
        ({"type": ["string", "null"]}, lambda: v.text(20) if rng.random() < 0.5 else None),
    ]
    return rng.choice(kinds)


def object_of(
    v: Values, members: list[tuple[str, Schema, Make]], optional: float = 0.0
) -> tuple[Schema, Make]:
    required = [name for name, _, _ in members if v.rng.random() >= optional]
    schema: Schema = {
        "type": "object",
        "properties": {name: part for name, part, _ in members},
        "required": required,
        "additionalProperties": False,
    }

    def make() -> Any:
        return {name: m() for name, _, m in members if name in required or v.rng.random() < 0.5}

    return schema, make


def array_of(v: Values, item: tuple[Schema, Make], least: int, most: int) -> tuple[Schema, Make]:
    schema: Schema = {"type": "array", "items": item[0], "minItems": least, "maxItems": most}
    return schema, lambda: [item[1]() for _ in range(v.rng.randint(least, most))]


def flat(v: Values) -> tuple[Schema, Make]:
    return object_of(v, [(name, *scalar(v)) for name in v.names(v.rng.randint(3, 30))])


def optional(v: Values) -> tuple[Schema, Make]:
    return object_of(v, [(name, *scalar(v)) for name in v.names(v.rng.randint(4, 14))], optional=0.6)


def nested(v: Values, depth: int | None = None) -> tuple[Schema, Make]:
    depth = v.rng.randint(2, 6) if depth is None else depth
    members = [(name, *scalar(v)) for name in v.names(v.rng.randint(1, 3))]
    if depth > 0:
        members += [
            (name, *nested(v, depth - 1)) for name in v.names(v.rng.randint(1, 2)) if len(members) < 5
        ]
    return object_of(v, list({m[0]: m for m in members}.values()))


def arrays(v: Values) -> tuple[Schema, Make]:
    item = object_of(v, [(name, *scalar(v)) for name in v.names(v.rng.randint(2, 6))])
    inner = array_of(v, item, v.rng.randint(0, 2), v.rng.randint(3, 8))
    return object_of(v, [("items", *inner), ("total", {"type": "integer"}, lambda: v.rng.randint(0, 99))])


def enums(v: Values) -> tuple[Schema, Make]:
    members: list[tuple[str, Schema, Make]] = []
    for name in v.names(v.rng.randint(2, 6)):
        values = [f"{a}-{b}" for a in v.names(v.rng.randint(2, 14)) for b in v.names(v.rng.randint(1, 8))]
        values = list(dict.fromkeys(values))
        members.append((name, {"type": "string", "enum": values}, partial(v.rng.choice, values)))
    return object_of(v, members)


def patterns(v: Values) -> tuple[Schema, Make]:
    kinds: list[tuple[str, Callable[[], str]]] = [
        ("^[A-Z]{3}-[0-9]{4,8}$", lambda: v.letters(3, "ABCXYZ") + "-" + v.digits(v.rng.randint(4, 8))),
        (r"^\+[0-9]{1,3} [0-9]{3} [0-9]{4}$", lambda: f"+{v.digits(2)} {v.digits(3)} {v.digits(4)}"),
        ("^[0-9a-f]{32}$", lambda: v.letters(32, "0123456789abcdef")),
        ("^(low|medium|high)_[a-z]+$", lambda: "medium_" + v.letters(9)),
        (r"^[a-z0-9._]+@[a-z0-9]+\.(com|org|net)$", lambda: f"{v.letters(7)}.x@{v.letters(6)}.org"),
        ("^#[0-9A-F]{6}$", lambda: "#" + v.letters(6, "0123456789ABCDEF")),
    ]
    members = []
    for name in v.names(v.rng.randint(2, 5)):
        pattern, make = v.rng.choice(kinds)
        members.append((name, {"type": "string", "pattern": pattern}, make))
    return object_of(v, members)


def formats(v: Values) -> tuple[Schema, Make]:
    rng = v.rng
    kinds: list[tuple[str, Make]] = [
        ("date", lambda: f"{rng.randint(1990, 2040)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"),
        ("time", lambda: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z"),
        (
            "date-time",
            lambda: f"{rng.randint(1990, 2040)}-0{rng.randint(1, 9)}-11T10:{rng.randint(10, 59)}:07Z",
        ),
        ("uuid", lambda: "-".join(v.letters(n, "0123456789abcdef") for n in (8, 4, 4, 4, 12))),
        ("ipv4", lambda: ".".join(str(rng.randint(0, 255)) for _ in range(4))),
        ("email", lambda: f"{v.letters(8)}@{v.letters(5)}.com"),
    ]
    members = []
    for name in v.names(rng.randint(2, 5)):
        kind, make = rng.choice(kinds)
        members.append((name, {"type": "string", "format": kind}, make))
    return object_of(v, members)


def references(v: Values) -> tuple[Schema, Make]:
    shared = {name: object_of(v, [(n, *scalar(v)) for n in v.names(4)]) for name in v.names(3)}
    members: list[tuple[str, Schema, Make]] = []
    for name in v.names(v.rng.randint(3, 6)):
        target = v.rng.choice(sorted(shared))
        members.append((name, {"$ref": f"#/$defs/{target}"}, shared[target][1]))
    schema, make = object_of(v, members)
    return {"$defs": {name: part for name, (part, _) in shared.items()}, **schema}, make


def unions(v: Values) -> tuple[Schema, Make]:
    kinds = []
    for name in v.names(v.rng.randint(2, 6)):
        members = [(n, *scalar(v)) for n in v.names(3) if n != "kind"]
        kinds.append(object_of(v, [("kind", {"const": name}, partial(str, name)), *members]))
    item: tuple[Schema, Make] = ({"anyOf": [k[0] for k in kinds]}, lambda: v.rng.choice(kinds)[1]())
    return object_of(v, [("events", *array_of(v, item, 1, 5))])


def ranges(v: Values) -> tuple[Schema, Make]:
    members: list[tuple[str, Schema, Make]] = []
    for name in v.names(v.rng.randint(2, 6)):
        low = v.rng.choice([-1000, -50, 0, 1, 18])
        high = low + v.rng.choice([9, 100, 5000, 123_456])
        members.append(
            (
                name,
                {"type": "integer", "minimum": low, "maximum": high},
                partial(v.rng.randint, low, high),
            )
        )
    return object_of(v, members)


def lengths(v: Values) -> tuple[Schema, Make]:
    members: list[tuple[str, Schema, Make]] = []
    for name in v.names(v.rng.randint(1, 4)):
        most = v.rng.choice([20, 80, 300, 1000])
        members.append(
            (
                name,
                {"type": "string", "minLength": 1, "maxLength": most},
                partial(v.text, most, escapes=False),
            )
        )
    return object_of(v, members)


def trees(v: Values) -> tuple[Schema, Make]:
    name, children = v.names(2)
    node: Schema = {
        "type": "object",
        "properties": {
            name: {"type": "string"},
            children: {"type": "array", "items": {"$ref": "#/$defs/node"}},
        },
        "required": [name, children],
        "additionalProperties": False,
    }

    def make(depth: int = 3) -> Any:
        below = [make(depth - 1) for _ in range(v.rng.randint(0, 3))] if depth > 0 else []
        return {name: v.text(16), children: below}

    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}, make


def tuples(v: Values) -> tuple[Schema, Make]:
    parts = [scalar(v) for _ in range(v.rng.randint(2, 6))]
    row: Schema = {
        "type": "array",
        "prefixItems": [part for part, _ in parts],
        "items": False,
        "minItems": len(parts),
    }
    return object_of(v, [("rows", *array_of(v, (row, lambda: [m() for _, m in parts]), 1, 6))])


def maps(v: Values) -> tuple[Schema, Make]:
    part, make = scalar(v)
    schema: Schema = {"type": "object", "additionalProperties": part}
    return object_of(
        v, [(v.names(1)[0], schema, lambda: {name: make() for name in v.names(v.rng.randint(1, 8))})]
    )


def calls(v: Values) -> tuple[Schema, Make]:
    tools = []
    for name in v.names(v.rng.randint(2, 8)):
        arguments = object_of(v, [(n, *scalar(v)) for n in v.names(v.rng.randint(1, 5))])
        tools.append(
            object_of(v, [("name", {"const": name}, partial(str, name)), ("parameters", *arguments)])
        )
    item: tuple[Schema, Make] = ({"anyOf": [t[0] for t in tools]}, lambda: v.rng.choice(tools)[1]())
    return array_of(v, item, 1, 4)


SHAPES = [flat, optional, nested, arrays, enums, patterns, formats, references]
SHAPES += [unions, ranges, lengths, trees, tuples, maps, calls]


@dataclass(frozen=True)
class Case:
    shape: str
    schema: str
    documents: list[str]


def make_cases(count: int = NUM_CASES) -> list[Case]:
    cases = []
    for i in range(count):
        shape = SHAPES[i % len(SHAPES)]
        schema, make = shape(Values(i))
        documents = [json.dumps(make(), ensure_ascii=False) for _ in range(NUM_DOCUMENTS)]
        cases.append(Case(shape.__name__, json.dumps(schema), documents))
    return cases


if __name__ == "__main__":
    for case in make_cases():
        print(case.shape, case.schema, *case.documents, sep="\n    ")
