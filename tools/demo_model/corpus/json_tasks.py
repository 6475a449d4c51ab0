"""JSON: from a description, out of a passage, changed, read; always valid."""

from __future__ import annotations

import json
from collections.abc import Callable

from corpus.chat import Document, Session
from corpus.grammar import Rng, join_words
from corpus.recall import random_words
from corpus.world import (
    ADJECTIVES,
    COLOURS,
    DAYS,
    FOODS,
    MONTHS,
    OBJECTS,
    PLACES,
    distinct,
    first_name,
    person,
    town,
)

Value = str | int | bool | list[str]

_FIELDS: dict[str, Callable[[Rng], Value]] = {
    "name": first_name,
    "age": lambda rng: rng.randint(1, 99),
    "town": town,
    "colour": lambda rng: rng.choice(COLOURS),
    "price": lambda rng: rng.randint(1, 500),
    "count": lambda rng: rng.randint(1, 99),
    "size": lambda rng: rng.choice(("small", "medium", "large")),
    "item": lambda rng: rng.choice(OBJECTS),
    "day": lambda rng: rng.choice(DAYS),
    "month": lambda rng: rng.choice(MONTHS),
    "year": lambda rng: rng.randint(1800, 2040),
    "id": lambda rng: rng.randint(1, 9999),
    "owner": first_name,
    "place": lambda rng: rng.choice(PLACES),
    "open": lambda rng: rng.chance(0.5),
    "active": lambda rng: rng.chance(0.5),
    "tags": lambda rng: rng.some(ADJECTIVES, rng.randint(1, 3)),
    "friends": lambda rng: distinct(rng, "first", rng.randint(1, 3)),
    "food": lambda rng: rng.choice(FOODS),
    "key": lambda rng: random_words(rng, 1)[0],
}


def dumps(value: object, indent: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2 if indent else None)


def _object(rng: Rng, low: int = 2, high: int = 6) -> dict[str, Value]:
    return {key: _FIELDS[key](rng) for key in rng.some(list(_FIELDS), rng.randint(low, high))}


def _plain(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return join_words(value) if isinstance(value, list) else str(value)


def _describe(rng: Rng) -> tuple[str, str]:
    item = _object(rng)
    indent = rng.chance(0.2)
    pairs = rng.choice((" is ", ": ", " = ", " "))
    told = [key + pairs + _plain(value) for key, value in item.items()]
    listed = join_words(told) if rng.chance(0.4) else ", ".join(told)
    ask = rng.choice(
        (
            "Write a JSON object with {d}.",
            "Write this as JSON: {d}",
            "Make a JSON object from this: {d}",
            "Give me JSON for this record: {d}",
            "Give me a JSON object with {d}.",
            "Return JSON: {d}",
            "{d}\n\nWrite this as JSON.",
        )
    )
    return ask.format(d=listed) + (" Use several lines." if indent else ""), dumps(item, indent)


def _extract(rng: Rng) -> tuple[str, str]:
    who = person(rng)
    values: dict[str, tuple[str, Value]] = {
        "name": ("{full} lives in {town}.", who.full_name),
        "age": ("[{name}|{^he}] is {age} years old.", who.age),
        "job": ("{^he} works as {a job}.", who.job),
        "town": ("", who.town),
        "pet": ("{^he} has {a pet} [named|called] {pet_name}.", who.pet),
        "pet_name": ("", who.pet_name),
        "colour": ("{^his} favourite colour is {colour}.", who.colour),
        "hobby": ("[In {his} free time|On Sundays], {he} enjoys {hobby}.", who.hobby),
        "food": ("{name} [likes to eat|always carries] {a food}.", who.food),
    }
    text = " ".join(rng.say(said, who.slots) for said, _ in values.values() if said)
    keys = rng.some(list(values), rng.randint(2, 5))
    answer = dumps({key: values[key][1] for key in keys})
    if rng.chance(0.3):
        told = rng.fill("{name} is {age} [and lives in|years old and lives in] {town}.", who.slots)
        keys = rng.some(["name", "age", "town"], rng.randint(2, 3))
        short = {"name": who.first, "age": who.age, "town": who.town}
        ask = rng.choice(
            (
                "Write a JSON object with the keys {k} for: {t}",
                "{t} Extract {k} as JSON.",
                "Extract {k} as JSON: {t}",
            )
        )
        return ask.format(t=told, k=join_words(keys)), dumps({key: short[key] for key in keys})
    ask = rng.choice(
        (
            "{t}\n\nExtract {k} as JSON.",
            "{t}\n\nWrite a JSON object with the keys {k}.",
            "Extract {k} as JSON from this text: {t}",
        )
    )
    return ask.format(t=text, k=join_words(keys)), answer


def _order(rng: Rng) -> tuple[str, str]:
    who = first_name(rng)
    items = rng.some(FOODS + OBJECTS, rng.randint(1, 3))
    counts = [rng.randint(1, 30) for _ in items]
    told = join_words([f"{n} x {item}" for n, item in zip(counts, items, strict=True)])
    order = {
        "customer": who,
        "items": [{"item": i, "count": n} for i, n in zip(items, counts, strict=True)],
    }
    return f"Write this order as JSON: {who} orders {told}.", dumps(order)


def _invent(rng: Rng) -> tuple[str, str]:
    """Keys without values: any values will do, and the usual ones come first."""
    keys = rng.some(list(_FIELDS), rng.randint(1, 5))
    item = {key: _FIELDS[key](rng) for key in keys}
    ask = rng.choice(
        (
            "Return a JSON object with {k}.",
            "Write a JSON object with the keys {k}. You may choose the values.",
            "Invent a JSON object with {k}.",
        )
    )
    return ask.format(k=join_words(keys)), dumps(item)


def _array(rng: Rng) -> tuple[str, str]:
    if rng.chance(0.4):
        numbers = [rng.randint(0, 200) for _ in range(rng.randint(2, 7))]
        return f"Write a JSON array of these numbers: {join_words([*map(str, numbers)])}", dumps(numbers)
    words = random_words(rng, rng.randint(2, 7))
    return f"Write a JSON array of these words: {join_words(words)}", dumps(words)


def _nested(rng: Rng) -> tuple[str, str]:
    people = [person(rng) for _ in range(rng.randint(2, 3))]
    told = " ".join(f"{p.first} is {p.age} and lives in {p.town}." for p in people)
    answer = {"people": [{"name": p.first, "age": p.age, "town": p.town} for p in people]}
    return f"Write a JSON object with a list of people: {told}", dumps(answer)


def _call(rng: Rng) -> tuple[str, str]:
    place, day = town(rng), rng.choice(DAYS)
    name, minutes = first_name(rng), rng.randint(1, 90)
    said, function, arguments = rng.choice(
        (
            (
                f"What will the weather be in {place} on {day}?",
                "get_weather",
                {"town": place, "day": day},
            ),
            (f"Send a letter to {name} in {place}.", "send_letter", {"to": name, "town": place}),
            (f"Set a timer for {minutes} minutes.", "set_timer", {"minutes": minutes}),
            (f"Book a room in {place} for {name}.", "book_room", {"town": place, "guest": name}),
        )
    )
    answer = {"name": function, "arguments": arguments}
    return f"{said}\nAnswer with a JSON function call.", dumps(answer)


def _read(rng: Rng) -> list[tuple[str, str]]:
    item = _object(rng, 3, 7)
    turns = []
    for key in rng.some(list(item), rng.randint(1, 3)):
        turns.append((f"What is the value of {key}?", _plain(item[key])))
    turns[0] = f"{dumps(item, rng.chance(0.2))}\n\n{turns[0][0]}", turns[0][1]
    return turns


def _change(rng: Rng) -> list[tuple[str, str]]:
    item = _object(rng, 2, 5)
    turns = []
    before = dumps(item)
    for _ in range(rng.randint(1, 3)):
        roll = rng.random()
        if roll < 0.5:
            key = rng.choice(list(item))
            item = {**item, key: _FIELDS[key](rng)}
            ask = f"Set {key} to {_plain(item[key])}."
        elif roll < 0.8 or len(item) < 3:
            key = rng.choice([k for k in _FIELDS if k not in item])
            item = {**item, key: _FIELDS[key](rng)}
            ask = f"Add {key} with the value {_plain(item[key])}."
        else:
            key = rng.choice(list(item))
            item = {k: v for k, v in item.items() if k != key}
            ask = f"Remove {key}."
        turns.append((ask, dumps(item)))
    turns[0] = f"{before}\n\n{turns[0][0]}", turns[0][1]
    return turns


def json_session(rng: Rng) -> Session:
    system = "You answer in JSON." if rng.chance(0.15) else ""
    roll = rng.random()
    if roll < 0.3:
        return Session("json_write", [_describe(rng)], system)
    if roll < 0.55:
        return Session("json_extract", [_extract(rng)], system)
    if roll < 0.62:
        return Session("json_write", [_order(rng)], system)
    if roll < 0.7:
        return Session("json_write", [_array(rng)], system)
    if roll < 0.76:
        return Session("json_extract", [_nested(rng)], system)
    if roll < 0.82:
        return Session("json_write", [_call(rng)], system)
    if roll < 0.84:
        return Session("json_invent", [_invent(rng)], system, exact=False)
    if roll < 0.92:
        return Session("json_read", _read(rng))
    return Session("json_change", _change(rng), system)


def json_document(rng: Rng) -> Document:
    """Plain JSON records, one a line or indented."""
    keys = rng.some(list(_FIELDS), rng.randint(2, 5))
    records = [{key: _FIELDS[key](rng) for key in keys} for _ in range(rng.randint(1, 8))]
    if rng.chance(0.4):
        return Document("json_plain", dumps(records, indent=True))
    return Document("json_plain", "\n".join(dumps(record) for record in records))
