"""Passages with questions about them: people, towns, festivals, journeys, stores and moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from corpus.chat import Session
from corpus.grammar import Rng, join_words, plural
from corpus.world import (
    ADJECTIVES,
    COLOURS,
    DAYS,
    MONTHS,
    NUMBER_WORDS,
    OBJECTS,
    PLACES,
    REGIONS,
    RIVERS,
    SUBJECTS,
    Person,
    distinct,
    first_name,
    is_female,
    person,
    town,
)

UNKNOWN = "The text does not say."


@dataclass(frozen=True)
class Fact:
    """One thing a passage says, and how to ask for it."""

    statement: str
    question: str
    short: str
    sentence: str


def _fact(rng: Rng, slots: dict[str, str], statement: str, question: str, short: str, sentence: str) -> Fact:
    return Fact(
        rng.say(statement, slots),
        rng.say(question, slots),
        rng.fill(short, slots),
        rng.say(sentence, slots),
    )


# statement, question, short answer, full answer
_PERSON_FACTS = {
    "age": (
        "[{name}|{^he}] is {age} years old.",
        "How old is {name}?",
        "{age}",
        "{name} is {age} years old.",
    ),
    "job": (
        "[{name}|{^he}] works as {a job}.",
        "What is {name}'s job?",
        "{a job}",
        "{name} is {a job}.",
    ),
    "town": (
        "[{name}|{^he}] lives in [the town of|] {town}.",
        "Where does {name} live?",
        "{town}",
        "{name} lives in {town}.",
    ),
    "pet": (
        "[{^he}|{name}] has {a pet} [called|named] {pet_name}.",
        "[What is the name of {name}'s {pet}?|What is {name}'s {pet} called?]",
        "{pet_name}",
        "{name}'s {pet} is called {pet_name}.",
    ),
    "animal": (
        "[{^he}|{name}] has {a pet} [called|named] {pet_name}.",
        "What kind of animal is {pet_name}?",
        "{a pet}",
        "{pet_name} is {a pet}.",
    ),
    "colour": (
        "{^his} favourite colour is {colour}.",
        "What is {name}'s favourite colour?",
        "{colour}",
        "{name}'s favourite colour is {colour}.",
    ),
    "hobby": (
        "[In {his} free time|On Sundays], {he} enjoys {hobby}.",
        "What does {name} enjoy?",
        "{hobby}",
        "{name} enjoys {hobby}.",
    ),
    "family": (
        "{^his} family name is {family}.",
        "What is {name}'s family name?",
        "{family}",
        "{name}'s family name is {family}.",
    ),
}


def person_facts(rng: Rng, who: Person, count: int) -> list[Fact]:
    kinds = rng.some([k for k in _PERSON_FACTS if k != "animal"], count)
    if "pet" in kinds and rng.chance(0.4):
        kinds[kinds.index("pet")] = "animal"
    facts = [_fact(rng, who.slots, *_PERSON_FACTS[kind]) for kind in kinds]
    # The first sentence of a passage needs a name, not a pronoun.
    first = facts[0].statement
    if not first.startswith(who.first):
        facts[0] = Fact(f"This is {who.first}. {first}", *_rest(facts[0]))
    return facts


def _rest(fact: Fact) -> tuple[str, str, str]:
    return fact.question, fact.short, fact.sentence


def _people(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    people = [person(rng) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
    people = list({who.first: who for who in people}.values())
    facts: list[Fact] = []
    for who in people:
        facts += person_facts(rng, who, rng.randint(2, 5) if len(people) < 4 else 2)
    stranger = first_name(rng)
    unknown = [f"How old is {stranger}?", f"Where does {stranger} live?"]
    if stranger in {who.first for who in people}:
        unknown = []
    return " ".join(fact.statement for fact in facts), facts, unknown


def _town(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    mayor = first_name(rng)
    slots = {
        "town": town(rng),
        "region": rng.choice(REGIONS),
        "river": rng.choice(RIVERS),
        "year": str(rng.randint(1100, 1999)),
        "people": str(rng.randint(2, 99) * 100),
        "mayor": mayor,
        "known": rng.choice(SUBJECTS),
        "day": rng.choice(DAYS),
        "place": rng.choice(PLACES),
        "colour": rng.choice(COLOURS),
    }
    facts = [
        _fact(rng, slots, *spec)
        for spec in rng.some(
            [
                (
                    "The town was founded in {year}.",
                    "When was {town} founded?",
                    "{year}",
                    "{town} was founded in {year}.",
                ),
                (
                    "[About|Around] {people} people live there.",
                    "How many people live in {town}?",
                    "{people}",
                    "About {people} people live in {town}.",
                ),
                (
                    "Its mayor is [called|named] {mayor}.",
                    "Who is the mayor of {town}?",
                    "{mayor}",
                    "The mayor of {town} is {mayor}.",
                ),
                (
                    "The town is known for its {known}.",
                    "What is {town} known for?",
                    "{known}",
                    "{town} is known for its {known}.",
                ),
                (
                    "The market is held every {day}.",
                    "On which day is the market held?",
                    "{day}",
                    "The market is held on {day}.",
                ),
                (
                    "It stands on the river {river}.",
                    "Which river does {town} stand on?",
                    "the {river}",
                    "{town} stands on the river {river}.",
                ),
                (
                    "The roof of the {place} is {colour}.",
                    "What colour is the roof of the {place}?",
                    "{colour}",
                    "The roof of the {place} is {colour}.",
                ),
            ],
            rng.randint(2, 6),
        )
    ]
    start = rng.say("{town} is a [small|quiet|old] town in {region}.", slots)
    region = Fact(
        start,
        f"In which region is {slots['town']}?",
        slots["region"],
        f"{slots['town']} is in {slots['region']}.",
    )
    text = " ".join([start, *(fact.statement for fact in facts)])
    asked = {fact.question for fact in facts}
    unknown = [
        q
        for q in (f"Who is the mayor of {slots['town']}?", f"When was {slots['town']} founded?")
        if q not in asked
    ]
    return text, [region, *facts], unknown


def _event(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    hour = rng.randint(1, 11)
    slots = {
        "thing": plural(rng.choice(OBJECTS)),
        "town": town(rng),
        "place": rng.choice(PLACES),
        "day": rng.choice(DAYS),
        "date": f"{rng.randint(1, 28)} {rng.choice(MONTHS)}",
        "host": first_name(rng),
        "guests": str(rng.randint(12, 980)),
        "hour": str(hour),
        "end": str(hour + rng.randint(1, 12 - hour)),
        "price": str(rng.randint(2, 40)),
    }
    text, facts = "", []
    for spec in (
        (
            "The festival of {thing} [took place|was held] in {town}.",
            "In which town was the festival?",
            "{town}",
            "The festival was in {town}.",
        ),
        (
            "It was held on {day}, {date}.",
            "On which day was the festival held?",
            "{day}",
            "The festival was held on {day}.",
        ),
        (
            "{host} [organised it|was the host].",
            "Who organised the festival?",
            "{host}",
            "{host} organised the festival.",
        ),
        (
            "{guests} people came.",
            "How many people came?",
            "{guests}",
            "{guests} people came.",
        ),
        (
            "It began at {hour} o'clock and ended at {end}.",
            "[At what time|When] did it begin?",
            "{hour} o'clock",
            "It began at {hour} o'clock.",
        ),
        (
            "A ticket cost {price} coins.",
            "How much did a ticket cost?",
            "{price} coins",
            "A ticket cost {price} coins.",
        ),
    ):
        fact = _fact(rng, slots, *spec)
        text += " " + fact.statement
        facts.append(fact)
    facts.append(Fact("", "What was the date of the festival?", slots["date"], f"It was {slots['date']}."))
    return text.strip(), facts, ["Who won the contest?", "What was the weather like?"]


def _journey(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    name, friend = distinct(rng, "first", 2)
    start, goal, stop = distinct(rng, "town", 3)
    slots = {
        "name": name,
        "he": "she" if is_female(name) else "he",
        "friend": friend,
        "start": start,
        "goal": goal,
        "stop": stop,
        "way": rng.choice(("boat", "train", "cart", "ferry", "bus", "horse")),
        "day": rng.choice(DAYS),
        "thing": rng.choice(OBJECTS),
        "adj": rng.choice(ADJECTIVES),
        "hours": NUMBER_WORDS[rng.randint(2, 12)],
    }
    specs = (
        (
            "On {day}, {name} [travelled|went] from {start} to {goal} by {way}.",
            "Where did {name} start?",
            "{start}",
            "{name} started in {start}.",
        ),
        (
            "[The journey|It] took {hours} hours.",
            "How long did the journey take?",
            "{hours} hours",
            "The journey took {hours} hours.",
        ),
        (
            "On the way {he} stopped in {stop}.",
            "Where did {name} stop on the way?",
            "{stop}",
            "{name} stopped in {stop}.",
        ),
        (
            "{^he} was carrying {a adj} {thing}.",
            "What was {name} carrying?",
            "{a adj} {thing}",
            "{name} was carrying {a adj} {thing}.",
        ),
        (
            "[In {goal}|There], {friend} was waiting.",
            "Who was waiting in {goal}?",
            "{friend}",
            "{friend} was waiting in {goal}.",
        ),
    )
    facts = [_fact(rng, slots, *spec) for spec in specs]
    text = " ".join(fact.statement for fact in facts)
    for question, short, sentence in (
        ("Where did {name} go?", "{goal}", "{name} went to {goal}."),
        ("How did {name} travel?", "by {way}", "{name} travelled by {way}."),
        ("On which day did {name} travel?", "{day}", "{name} travelled on {day}."),
    ):
        facts.append(_fact(rng, slots, "", question, short, sentence))
    return text, facts, [f"How old is {name}?", f"What is {friend}'s job?"]


def _store(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    place = rng.choice(PLACES)
    things = rng.some(OBJECTS, rng.randint(3, 6))
    counts = [rng.randint(2, 20) for _ in things]
    numbers = [str(n) if rng.chance(0.5) else NUMBER_WORDS[n] for n in counts]
    listed = [f"{number} {plural(thing)}" for number, thing in zip(numbers, things, strict=True)]
    text = rng.say("[In|At] the {place} there are {things}.", place=place, things=join_words(listed))
    facts = [
        Fact(
            "",
            f"How many {plural(thing)} are there?",
            number,
            f"There are {number} {plural(thing)}.",
        )
        for thing, number in zip(things, numbers, strict=True)
    ]
    other = rng.choice([thing for thing in OBJECTS if thing not in things])
    return text, facts, [f"How many {plural(other)} are there?"]


def _moves(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    """People and things move about; the last move counts."""
    names = distinct(rng, "first", rng.randint(2, 4))
    places = rng.some(PLACES, 5)
    things = rng.some(OBJECTS, 2)
    where: dict[str, str] = {}
    holder: dict[str, str] = {}
    lines = []
    for _ in range(rng.randint(4, 10)):
        name = rng.choice(names)
        if rng.chance(0.6) or name not in where:
            where[name] = rng.choice([p for p in places if p != where.get(name)])
            lines.append(rng.say("{n} [went|walked|moved] to the {p}.", n=name, p=where[name]))
        else:
            thing = rng.choice(things)
            if holder.get(thing) is None:
                holder[thing] = name
                lines.append(rng.say("{n} [picked up|took] the {t}.", n=name, t=thing))
            elif holder[thing] != name:
                lines.append(f"{holder[thing]} gave the {thing} to {name}.")
                holder[thing] = name
    facts = [Fact("", f"Where is {n}?", f"the {p}", f"{n} is at the {p}.") for n, p in where.items()]
    facts += [Fact("", f"Who has the {t}?", n, f"{n} has the {t}.") for t, n in holder.items()]
    return " ".join(lines), facts, []


_MAKERS = (_people, _people, _people, _town, _town, _event, _journey, _store, _moves)


def passage(rng: Rng) -> tuple[str, list[Fact], list[str]]:
    """A text, what can be asked about it, and what it leaves open."""
    return rng.choice(_MAKERS)(rng)


def joined_passages(rng: Rng, count: int) -> tuple[str, list[Fact]]:
    """Several passages, and the questions that only one of them answers."""
    parts = [passage(rng) for _ in range(count)]
    times_asked = Counter(q for _, facts, _ in parts for q in {f.question for f in facts})
    clear = [f for _, facts, _ in parts for f in facts if times_asked[f.question] == 1]
    return "\n\n".join(text for text, _, _ in parts), clear


_LAYOUTS = (
    "{t}\n\n{q}",
    "{t} {q}",
    "Read this text: {t}\n\n{q}",
    "Text: {t}\nQuestion: {q}",
    "{t}\n{q}",
    "{q}\n\n{t}",
)


def passage_session(rng: Rng) -> Session:
    text, facts, unknown = passage(rng)
    if rng.chance(0.15):
        several, clear = joined_passages(rng, rng.choice((2, 2, 3, 5, 8)))
        if clear:
            text, facts, unknown = several, clear, []
    rng.shuffle(facts)
    brief = rng.chance(0.4)
    system = ""
    cue = ""
    if brief:
        system = "Answer briefly." if rng.chance(0.4) else ""
        cue = "" if system else " Answer briefly."
    asked = [(f.question, f.short if brief else f.sentence) for f in facts[: rng.randint(1, 5)]]
    if unknown and rng.chance(0.25):
        asked.insert(rng.randint(0, len(asked)), (rng.choice(unknown), UNKNOWN))
    turns = [(question + cue, answer) for question, answer in asked]
    question, answer = turns[0]
    layout = rng.skewed(_LAYOUTS)
    turns[0] = layout.format(t=text, q=question), answer
    return Session("passage_qa", turns, system)
