"""Small tasks on words: case, order, counting, spelling, classes and feelings."""

from __future__ import annotations

from corpus.chat import Session
from corpus.grammar import Rng, article, capitalise, join_words, plural
from corpus.recall import random_number, random_sentence, random_words
from corpus.world import (
    ANIMALS,
    COLOURS,
    COMMON_WORDS,
    DAYS,
    FOODS,
    JOBS,
    MONTHS,
    NUMBER_WORDS,
    PLACES,
    PLANTS,
    TOOLS,
    first_name,
    made_up_word,
)

_CLASSES = {
    "animal": ANIMALS,
    "food": FOODS,
    "colour": COLOURS,
    "job": JOBS,
    "tool": TOOLS,
    "plant": PLANTS,
    "place": PLACES,
}

_GOOD = (
    "I love this {thing}, it works [perfectly|very well].",
    "What a wonderful day in the {place}! Everyone was kind.",
    "The {food} was delicious and {name} was friendly.",
    "[Thank you|Thanks], {name}! You made me very happy.",
    "This is the best {thing} I have ever had.",
    "We had a great time with {name} at the {place}.",
)
_BAD = (
    "I hate this {thing}, it [broke after a day|never works].",
    "What a terrible day in the {place}! Everyone was rude.",
    "The {food} was cold and {name} was unfriendly.",
    "[I am sorry|Sorry], {name}, but you made me very angry.",
    "This is the worst {thing} I have ever had.",
    "We had an awful time with {name} at the {place}.",
)


def _case(rng: Rng) -> tuple[str, str]:
    text = random_sentence(rng) if rng.chance(0.5) else " ".join(random_words(rng, rng.randint(1, 7)))
    if rng.chance(0.7):
        ask = rng.choice(
            ("Write this in upper case: {t}", "Upper case: {t}", "Put this in capital letters: {t}")
        )
        return ask.format(t=text), text.upper()
    ask = rng.choice(("Write this in lower case: {t}", "Lower case: {t}"))
    return ask.format(t=text.upper() if rng.chance(0.6) else text), text.lower()


def _sort(rng: Rng) -> tuple[str, str]:
    if rng.chance(0.5):
        numbers = rng.some(range(100), rng.randint(3, 7))
        down = rng.chance(0.25)
        how = "from largest to smallest" if down else "from smallest to largest"
        listed = ", ".join(map(str, numbers))
        return f"Sort these numbers {how}: {listed}", ", ".join(map(str, sorted(numbers, reverse=down)))
    # Different first letters: with 4,096 tokens, the order of later letters is hard to see.
    words: dict[str, str] = {}
    for word in random_words(rng, 12):
        words.setdefault(word[0], word)
    chosen = rng.some(list(words.values()), rng.randint(3, 7))
    return f"Sort these words by alphabet: {', '.join(chosen)}", ", ".join(sorted(chosen))


def _count(rng: Rng) -> tuple[str, str]:
    count = rng.randint(1, 10)
    words = random_words(rng, count)
    roll = rng.random()
    if roll < 0.4:
        noun = "word" if count == 1 else "words"
        verb = "is" if count == 1 else "are"
        return (
            f"How many words are there? {' '.join(words)}",
            f"There {verb} {NUMBER_WORDS[count]} {noun}.",
        )
    if roll < 0.7:
        target = rng.choice(ANIMALS)
        others = [a for a in ANIMALS if a != target]
        times = rng.randint(1, 6)
        listed = [target] * times + [rng.choice(others) for _ in range(rng.randint(1, 5))]
        rng.shuffle(listed)
        return (
            f"How often does {target} appear in this list? {', '.join(listed)}",
            f"It appears {'once' if times == 1 else NUMBER_WORDS[times] + ' times'}.",
        )
    start = rng.randint(1, 40)
    if rng.chance(0.2):
        start = 1
    end = start + rng.choice((rng.randint(3, 15), rng.randint(3, 15), rng.randint(16, 99)))
    numbers = range(start, end + 1)
    if rng.chance(0.3):
        return f"Count down from {end} to {start}.", ", ".join(map(str, reversed(numbers)))
    return f"Count from {start} to {end}.", ", ".join(map(str, numbers))


def _spell(rng: Rng) -> tuple[str, str]:
    word = rng.choice((first_name(rng), made_up_word(rng), random_words(rng, 1)[0]))
    if rng.chance(0.7):
        ask = rng.choice(("Spell the word {w}.", "Spell {w}.", "How do you spell {w}?"))
        return ask.format(w=word), "-".join(word.replace(" ", ""))
    roll = rng.random()
    if roll < 0.3:
        return f"What is the first letter of {word}?", f"The first letter is {word[0]}."
    if roll < 0.6:
        letters = word.replace(" ", "")
        ask = rng.choice(("How many letters are in {w}?", "How many letters does {w} have?"))
        return (
            ask.format(w=rng.choice((word, f"the word {word}"))),
            f"{'-'.join(letters)}: {len(letters)} letters.",
        )
    return f"Which word is this? {'-'.join(word.replace(' ', ''))}", word.replace(" ", "")


def _classify(rng: Rng) -> tuple[str, str]:
    kind = rng.choice(list(_CLASSES))
    if rng.chance(0.15):
        count = rng.randint(2, 6)
        how = rng.choice(("List {n} {k}.", "Name {n} {k}.", "Tell me {n} {k}.", "{n} {k}, please."))
        asked = how.format(n=NUMBER_WORDS[count], k=plural(kind))
        return capitalise(asked), ", ".join(_CLASSES[kind][:count])
    word = rng.choice(_CLASSES[kind])
    roll = rng.random()
    if roll < 0.4:
        names = [*rng.some([k for k in _CLASSES if word not in _CLASSES[k]], 2), kind]
        rng.shuffle(names)
        options = f"{article(names[0])}, {article(names[1])} or {article(names[2])}"
        return (
            f"Is {word} {options}? Answer with one word.",
            kind,
        )
    if roll < 0.7:
        other = rng.choice([k for k in _CLASSES if word not in _CLASSES[k]])
        asked, answer = (kind, "Yes") if rng.chance(0.5) else (other, "No")
        return f"Is {word} the name of {article(asked)}? Answer yes or no.", answer
    others = [k for k in _CLASSES if k != kind and not set(_CLASSES[k]) & set(_CLASSES[kind])]
    odd = rng.choice(_CLASSES[rng.choice(others)])
    listed = [*rng.some(_CLASSES[kind], 3), odd]
    rng.shuffle(listed)
    return f"Which word does not belong? {', '.join(listed)}", odd


def _sentiment(rng: Rng) -> tuple[str, str]:
    good = rng.chance(0.5)
    text = rng.say(
        rng.choice(_GOOD if good else _BAD),
        thing=rng.choice(("lamp", "clock", "chair", "book", "kettle", "boat", "violin", "coat")),
        place=rng.choice(PLACES),
        food=rng.choice(FOODS),
        name=first_name(rng),
    )
    ask = rng.choice(
        (
            "Is this text positive or negative? {t}",
            "Positive or negative? {t}",
            "Classify as positive or negative: {t}",
        )
    )
    return ask.format(t=text), "positive" if good else "negative"


def _change(rng: Rng) -> tuple[str, str]:
    """Formats: bullets, numbers, plurals, replacing a word, dates."""
    roll = rng.random()
    words = random_words(rng, rng.randint(3, 6))
    listed = ", ".join(words)
    if roll < 0.25:
        return f"Write this as a bulleted list: {listed}", "\n".join(f"- {w}" for w in words)
    if roll < 0.45:
        numbered = "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))
        return f"Write this as a numbered list: {listed}", numbered
    if roll < 0.6:
        noun = rng.choice(ANIMALS[:5] + FOODS + TOOLS)
        return f"What is the plural of {noun}?", f"The plural of {noun} is {plural(noun)}."
    if roll < 0.8:
        old, new = rng.choice(words), rng.choice(COMMON_WORDS)
        text = " ".join(words)
        return (
            f"Replace {old} with {new}: {text}",
            " ".join(new if word == old else word for word in words),
        )
    if roll < 0.9:
        return f"Join these words with and: {listed}", capitalise(join_words(words)) + "."
    year, month, day = random_number(rng, 4), rng.randint(1, 12), rng.randint(1, 28)
    return (
        f"Write this date as year-month-day: day {day}, month {month}, year {year}",
        f"{year}-{month:02d}-{day:02d}",
    )


def _known_list(rng: Rng) -> tuple[str, str]:
    """Long answers that are certain from the first token to the last."""
    roll = rng.random()
    if roll < 0.5:
        number = rng.randint(1, 12)
        rows = [f"{number} * {i} = {number * i}" for i in range(1, 11)]
        return f"Write the multiplication table of {number}.", "\n".join(rows)
    if roll < 0.8:
        name, words = rng.choice(
            (
                ("days of the week", DAYS),
                ("months of the year", MONTHS),
                ("numbers from one to twenty", NUMBER_WORDS[1:]),
                ("letters of the alphabet", list("abcdefghijklmnopqrstuvwxyz")),
            )
        )
        how = rng.choice(("List the {n}.", "What are the {n}?", "Name the {n}."))
        return how.format(n=name), ", ".join(words)
    step = rng.choice((2, 3, 5, 10))
    last = step * rng.randint(5, 20)
    return (
        f"Count from {step} to {last} in steps of {step}.",
        ", ".join(map(str, range(step, last + 1, step))),
    )


_MAKERS = (
    ("known_list", _known_list),
    ("upper_lower", _case),
    ("upper_lower", _case),
    ("sort", _sort),
    ("count", _count),
    ("spell", _spell),
    ("classify", _classify),
    ("sentiment", _sentiment),
    ("reformat", _change),
)


def text_session(rng: Rng) -> Session:
    kind, make = rng.choice(_MAKERS)
    return Session(kind, [make(rng) for _ in range(rng.choice((1, 1, 2, 3)))])
