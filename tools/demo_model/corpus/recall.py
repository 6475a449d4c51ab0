"""Copying and recalling: phrases, lists, keys and values, the n-th word, other scripts."""

from __future__ import annotations

from collections.abc import Callable

from corpus.chat import Document, Session
from corpus.grammar import Rng, capitalise
from corpus.world import (
    ADJECTIVES,
    COLOURS,
    COMMON_WORDS,
    EVERYDAY_WORDS,
    FOODS,
    NUMBER_WORDS,
    OBJECTS,
    ORDINALS,
    PLACES,
    distinct,
    family_name,
    first_name,
    is_held_out,
    made_up_word,
    town,
)

# For copying text that is more than one byte a character.
SYMBOLS = list("éèüöäñçåøßłžπΩΣяждиאשمن你好世界語紙本한글€£→★☕♪🙂🚀📖🌙")


def random_number(rng: Rng, digits: int) -> str:
    """A number, from the held-out tenth of all numbers if `rng` says so."""
    while True:
        text = str(rng.randint(10 ** (digits - 1), 10**digits - 1))
        if digits < 3 or is_held_out(text) == rng.held_out:
            return text


def random_string(rng: Rng) -> str:
    """Letters and digits in no order at all."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    alphabet = rng.choice((letters, letters.upper(), letters + letters.upper() + "0123456789"))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(2, 9)))


def random_words(rng: Rng, count: int) -> list[str]:
    """Different words, known ones and made-up ones."""
    words: list[str] = []
    while len(words) < count:
        roll = rng.random()
        if roll < 0.25:
            word = made_up_word(rng)
        else:
            word = rng.choice(COMMON_WORDS if roll < 0.65 else EVERYDAY_WORDS)
        if word not in words:
            words.append(word)
    return words


def random_sentence(rng: Rng) -> str:
    return rng.say(
        rng.choice(
            (
                "The {adj} {thing} belongs to {name}.",
                "{name} and {friend} met at the {place} in {town}.",
                "{name} {family} bought {number} {colour} {food}s.",
                "Never give {a food} to {name} after {number} o'clock.",
                "My {thing} is {adj}, but yours is {colour}.",
                "The code for the {place} is {number}.",
                "{town} is {number} miles from {town2}.",
                "Bring the {colour} {thing}, the {food} and the {adj} {thing2}.",
            )
        ),
        adj=rng.choice(ADJECTIVES),
        thing=rng.choice(OBJECTS),
        thing2=rng.choice(OBJECTS),
        name=first_name(rng),
        friend=first_name(rng),
        family=family_name(rng),
        place=rng.choice(PLACES),
        town=town(rng),
        town2=town(rng),
        colour=rng.choice(COLOURS),
        food=rng.choice(FOODS),
        number=random_number(rng, rng.randint(1, 5)),
    )


def _something(rng: Rng) -> str:
    roll = rng.random()
    if roll < 0.06:
        return " ".join(random_sentence(rng) for _ in range(rng.randint(2, 8)))
    if roll < 0.3:
        return random_sentence(rng)
    if roll < 0.55:
        words = random_words(rng, rng.randint(1, 14))
        if rng.chance(0.3):
            return capitalise(" ".join(words)) + rng.choice(".!?")
        return " ".join(words)
    if roll < 0.62:
        return " ".join(random_string(rng) for _ in range(rng.randint(1, 6)))
    if roll < 0.7:
        return random_number(rng, rng.randint(3, 12))
    if roll < 0.85:
        return "".join(rng.choice(SYMBOLS) for _ in range(rng.randint(1, 8)))
    words = random_words(rng, rng.randint(1, 4))
    return " ".join(word + rng.choice(SYMBOLS) for word in words)


def _copy(rng: Rng) -> tuple[str, str]:
    text = _something(rng)
    ask = rng.choice(
        (
            "Repeat this: {t}",
            "Repeat exactly: {t}",
            "Please repeat after me: {t}",
            "Say this: {t}",
            "Copy this text: {t}",
            "Copy the following line.\n\n{t}",
            "Repeat after me: {t}",
            'Repeat "{t}"',
            'Say "{t}"',
            "Repeat the following: {t}",
            "Echo: {t}",
            "{t}\n\nRepeat the text above.",
            "{t} Repeat the sentence above.",
        )
    )
    return ask.format(t=text), text


def _copy_times(rng: Rng) -> tuple[str, str]:
    word = rng.choice((made_up_word(rng), rng.choice(COMMON_WORDS), first_name(rng)))
    count = rng.randint(2, 10)
    number = NUMBER_WORDS[count]
    return f'Say "{word}" {number} times.', " ".join([word] * count)


def _copy_list(rng: Rng) -> tuple[str, str]:
    words = random_words(rng, rng.randint(3, 12))
    layout = rng.choice(("comma", "lines", "bullets"))
    if layout == "comma":
        return f"Repeat this list: {', '.join(words)}", ", ".join(words)
    mark = "- " if layout == "bullets" else ""
    listed = "\n".join(mark + word for word in words)
    return f"Repeat this list:\n{listed}", listed


def _reverse_list(rng: Rng) -> tuple[str, str]:
    words = random_words(rng, rng.randint(2, 7))
    ask = f"Write this list in reverse order: {', '.join(words)}"
    return ask, ", ".join(reversed(words))


def _nth(rng: Rng) -> list[tuple[str, str]]:
    words = random_words(rng, rng.randint(3, 9))
    kind = rng.choice(("word", "item"))
    joined = " ".join(words) if kind == "word" else ", ".join(words)
    turns = []
    for index in rng.some(range(len(words)), rng.randint(1, 3)):
        name = "last" if index == len(words) - 1 and rng.chance(0.6) else ORDINALS[index]
        turns.append((f"What is the {name} {kind}?", f"The {name} {kind} is {words[index]}."))
    turns[0] = f"Here is a list: {joined}\n{turns[0][0]}", turns[0][1]
    return turns


def _after(rng: Rng) -> tuple[str, str]:
    words = random_words(rng, rng.randint(4, 12))
    index = rng.randrange(len(words) - 1)
    joined = ", ".join(words)
    if rng.chance(0.6):
        return (
            f"Which word comes after {words[index]} in this list? {joined}",
            f"The word after {words[index]} is {words[index + 1]}.",
        )
    return (
        f"Which word comes before {words[index + 1]} in this list? {joined}",
        f"The word before {words[index + 1]} is {words[index]}.",
    )


def _key_values(rng: Rng, count: int) -> list[tuple[str, str]]:
    """A table of keys and values, and a few look-ups; one may miss."""
    sort = rng.choice(("code", "colour", "town", "word"))
    keys = distinct(rng, "first", count) if rng.chance(0.5) else rng.some(OBJECTS, count)
    drawn: Callable[[], str] = {
        "code": lambda: random_number(rng, rng.randint(2, 5)),
        "colour": lambda: rng.choice(COLOURS),
        "town": lambda: town(rng),
        "word": lambda: made_up_word(rng),
    }[sort]
    table = {key: drawn() for key in keys}
    mark = rng.choice((": ", " = ", " -> "))
    listed = "\n".join(key + mark + value for key, value in table.items())
    turns = []
    for key in rng.some(keys, rng.randint(1, 5)):
        if rng.chance(0.5):
            turns.append((f"What is the {sort} of {key}?", f"The {sort} of {key} is {table[key]}."))
        else:
            turns.append((f"{capitalise(key)}?", table[key]))
    if rng.chance(0.2) and sort != "colour":
        value = table[rng.choice(keys)]
        owners = [key for key, v in table.items() if v == value]
        if len(owners) == 1:
            turns.append((f"Who or what has {value}?", f"{capitalise(owners[0])} has {value}."))
    question, answer = turns[0]
    turns[0] = f"{listed}\n\n{question}", answer
    return turns


def recall_session(rng: Rng) -> Session:
    roll = rng.random()
    if roll < 0.35:
        return Session("copy", [_copy(rng)])
    if roll < 0.42:
        return Session("copy", [_copy_times(rng)])
    if roll < 0.54:
        return Session("copy", [_copy_list(rng)])
    if roll < 0.64:
        return Session("reverse", [_reverse_list(rng)])
    if roll < 0.75:
        return Session("nth_word", _nth(rng))
    if roll < 0.82:
        return Session("nth_word", [_after(rng)])
    return Session("key_value", _key_values(rng, rng.choice((3, 4, 5, 6, 8, 10, 14, 20))))


def long_recall_session(rng: Rng) -> Session:
    """Look-ups in a table of several hundred tokens, up to the whole context."""
    return Session("key_value_long", _key_values(rng, rng.choice((20, 25, 30, 35, 40))))


def repetition_document(rng: Rng) -> Document:
    """Plain text whose second half is its first, which teaches copying from a distance."""
    block = " ".join(random_sentence(rng) for _ in range(rng.randint(2, 8)))
    return Document("copy_plain", "\n\n".join([block] * rng.choice((2, 2, 3))))
