"""Plain documents: talk between characters, letters, lists, notices, diaries."""

from __future__ import annotations

from corpus.chat import Document
from corpus.grammar import Rng, join_words, plural
from corpus.passages import passage
from corpus.world import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    HOBBIES,
    JOBS,
    MONTHS,
    NUMBER_WORDS,
    OBJECTS,
    PLACES,
    WEATHER,
    distinct,
    town,
)


def _slots(rng: Rng) -> dict[str, str]:
    name, friend, other = distinct(rng, "first", 3)
    return {
        "name": name,
        "friend": friend,
        "other": other,
        "town": town(rng),
        "place": rng.choice(PLACES),
        "place2": rng.choice(PLACES),
        "thing": rng.choice(OBJECTS),
        "thing2": rng.choice(OBJECTS),
        "things": plural(rng.choice(OBJECTS)),
        "food": rng.choice(FOODS),
        "animal": rng.choice(ANIMALS),
        "colour": rng.choice(COLOURS),
        "adj": rng.choice(ADJECTIVES),
        "day": rng.choice(DAYS),
        "month": rng.choice(MONTHS),
        "weather": rng.choice(WEATHER),
        "job": rng.choice(JOBS),
        "hobby": rng.choice(HOBBIES),
        "count": rng.choice(NUMBER_WORDS[2:13]),
        "hour": rng.choice(NUMBER_WORDS[1:13]),
        "date": str(rng.randint(1, 28)),
    }


_EXCHANGES = (
    ("Have you seen my {thing}?", "Yes, it is [in|behind] the {place}."),
    ("What is in that {colour} box?", "Only {a food} and some {things}."),
    ("Where are you going?", "To the {place2}, to meet {other}."),
    ("Did you hear the news from {town}?", "No. What happened there?"),
    ("{a animal} got into the {place}.", "Again? That is the second time this {month}."),
    ("Will you come on {day}?", "I will, if it is not {weather}."),
    ("How much is this {adj} {thing}?", "For you, {count} coins."),
    ("That is too much.", "Then give me {a food} as well, and it is yours."),
    ("{other} says that you enjoy {hobby}.", "I do, but I am not very good at it."),
    ("What time is it?", "Almost {hour}. We should hurry."),
    ("Can you help me with the {thing2}?", "Of course. Hold it by that end."),
    ("Do you remember the old {job}?", "How could I forget? The {adj} {thing}!"),
    ("It is {weather} today.", "It was the same last {month}."),
    ("I brought you something.", "{a thing2}! How did you know?"),
)


def dialogue_document(rng: Rng) -> Document:
    slots = _slots(rng)
    lines = []
    if rng.chance(0.6):
        lines.append(
            rng.say("{name} and {friend} [met|were sitting] at the {place2} in {town}.", slots) + "\n"
        )
    first, second = ("name", "friend")
    lines.append(f"{slots[first]}: Good morning, {slots[second]}!")
    lines.append(f"{slots[second]}: Good morning, {slots[first]}!")
    for asked, replied in rng.some(_EXCHANGES, rng.randint(2, 7)):
        lines.append(f"{slots[first]}: {rng.say(asked, slots)}")
        lines.append(f"{slots[second]}: {rng.say(replied, slots)}")
        if rng.chance(0.4):
            first, second = second, first
    lines.append(f"{slots[first]}: I have to go now. Goodbye, {slots[second]}.")
    lines.append(f"{slots[second]}: Goodbye, {slots[first]}. See you on {slots['day']}.")
    return Document("dialogue", "\n".join(lines))


_LETTER = (
    "thank you for the {adj} {thing}. It now stands beside the {place}, and everyone admires it.",
    "the weather here in {town} has been {weather} for {count} days.",
    "{other} sends greetings and asks about your {animal}.",
    "we had {a food} for supper, and I thought of you.",
    "I have begun with {hobby}. It is harder than I expected.",
    "on {day} the {job} came and repaired the {place2}.",
    "could you bring {count} {things} when you visit?",
    "the {colour} {thing2} you asked for is ready.",
    "last {month} we lost our {animal}, but it came back after {count} days.",
)


def letter_document(rng: Rng) -> Document:
    slots = _slots(rng)
    body = [rng.say(said, slots) for said in rng.some(_LETTER, rng.randint(3, 7))]
    head = f"{slots['town']}, {slots['date']} {slots['month']}\n\n" if rng.chance(0.6) else ""
    text = (
        f"{head}Dear {slots['friend']},\n\n"
        f"{' '.join(body)}\n\nI hope to see you soon.\n\nYours,\n{slots['name']}"
    )
    return Document("letter", text)


def list_document(rng: Rng) -> Document:
    slots = _slots(rng)
    roll = rng.random()
    if roll < 0.35:
        count = rng.randint(3, 9)
        items = [f"{rng.randint(2, 12)} {plural(food)}" for food in rng.some(FOODS, count)]
        head = rng.say("Shopping list of {name}:", slots)
        return Document("list", head + "\n" + "\n".join(f"- {item}" for item in items))
    if roll < 0.65:
        steps = [
            rng.say(step, slots)
            for step in rng.some(
                (
                    "Clean the {place}.",
                    "Feed the {animal}.",
                    "Buy {count} {things}.",
                    "Repair the {adj} {thing}.",
                    "Write to {friend}.",
                    "Paint the {thing2} {colour}.",
                    "Meet {other} at the {place2}.",
                    "Practise {hobby}.",
                    "Bake {a food} pie.",
                ),
                rng.randint(3, 7),
            )
        ]
        head = rng.say("What {name} has to do on {day}:", slots)
        numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
        return Document("list", head + "\n" + numbered)
    names = distinct(rng, "first", rng.randint(3, 8))
    head = rng.say("[Guests|Who will come] on {day}:", slots)
    rows = "\n".join(f"{name}, {rng.choice(JOBS)}, {rng.randint(18, 80)}" for name in names)
    return Document("list", f"{head}\n{rows}\nIn all: {NUMBER_WORDS[len(names)]} guests.")


def notice_document(rng: Rng) -> Document:
    """Passages without questions, and what follows from them."""
    text, facts, _ = passage(rng)
    if rng.chance(0.5):
        said = [fact.sentence for fact in rng.some(facts, rng.randint(1, 3))]
        return Document("notice", f"{text}\n\nIn short: {' '.join(said)}")
    if rng.chance(0.5):
        answers = [f"{fact.question} {fact.short}" for fact in rng.some(facts, 3)]
        return Document("notice", text + "\n\n" + "\n".join(answers))
    return Document("notice", f"{text}\n\n{join_words([f.sentence for f in facts[:1]])}")
