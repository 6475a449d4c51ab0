"""Stories: a cast, a plot of several stages, and everyday sentences in between."""

from __future__ import annotations

from corpus.chat import Document, Session
from corpus.grammar import Rng, article
from corpus.more_plots import MORE_PLOTS
from corpus.plots import PLOTS as FIRST_PLOTS
from corpus.story_frames import ASIDES, BRIDGES, ENDINGS, OPENINGS
from corpus.world import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    HOBBIES,
    JOBS,
    NUMBER_WORDS,
    OBJECTS,
    PLACES,
    WEATHER,
    first_name,
    is_female,
    skewed_name,
    town,
)

PLOTS = {**FIRST_PLOTS, **MORE_PLOTS}

_ASKS = (
    "[Tell|Write] me [a|a short] story about {about}.",
    "[Please tell|Tell|Can you tell] me a story about {about}[.|, please.]",
    "I would like [to hear|to read] a story about {about}.",
    "Write a story about {about}.",
)


def _cast(rng: Rng) -> dict[str, str]:
    """Who and where a story is about, and what it is about."""
    friend, elder = skewed_name(rng, 0), skewed_name(rng, 1)
    name = rng.choice((first_name(rng), skewed_name(rng, 1)))
    while name in (friend, elder):
        name = first_name(rng)
    female, friend_female, elder_female = map(is_female, (name, friend, elder))
    return {
        "name": name,
        "he": "she" if female else "he",
        "him": "her" if female else "him",
        "his": "her" if female else "his",
        "friend": friend,
        "fhe": "she" if friend_female else "he",
        "fhim": "her" if friend_female else "him",
        "fhis": "her" if friend_female else "his",
        "elder": elder,
        "ehe": "she" if elder_female else "he",
        "ehis": "her" if elder_female else "his",
        "town": town(rng),
        "job": rng.skewed(JOBS),
        "job2": rng.skewed(JOBS),
        "hobby": rng.skewed(HOBBIES),
        **_props(rng),
    }


def _props(rng: Rng) -> dict[str, str]:
    """What may change from one chapter to the next."""
    place, place2 = _two(rng, PLACES)
    thing, thing2 = _two(rng, OBJECTS)
    food, food2 = _two(rng, FOODS)
    return {
        "place": place,
        "place2": place2,
        "thing": thing,
        "thing2": thing2,
        "adj": rng.skewed(ADJECTIVES),
        "colour": rng.skewed(COLOURS),
        "animal": rng.skewed(ANIMALS),
        "animal_name": first_name(rng),
        "food": food,
        "food2": food2,
        "day": rng.skewed(DAYS),
        "weather": rng.skewed(WEATHER),
        "count": rng.skewed(NUMBER_WORDS[2:10]),
    }


def _two(rng: Rng, options: list[str]) -> tuple[str, str]:
    first = rng.skewed(options)
    return first, rng.skewed([option for option in options if option != first])


def _paragraphs(rng: Rng, sentences: list[str]) -> str:
    """Joins stages into paragraphs of a few sentences each."""
    paragraphs: list[str] = []
    current: list[str] = []
    for sentence in sentences:
        current.append(sentence)
        if len(current) >= 3 and rng.chance(0.7):
            paragraphs.append(" ".join(current))
            current = []
    if current:
        paragraphs.append(" ".join(current))
    return "\n\n".join(paragraphs)


def _chapter(rng: Rng, slots: dict[str, str], plot: str, asides: list[str]) -> list[str]:
    """The stages of one plot. An aside may follow any stage but the last two."""
    stages = PLOTS[plot]
    places = rng.some(range(len(stages) - 2), len(asides))
    sentences = []
    for index, stage in enumerate(stages):
        sentences.append(rng.say(rng.skewed(stage), slots))
        if index in places:
            sentences.append(rng.say(asides.pop(), slots))
    return sentences


def _tell(rng: Rng, slots: dict[str, str], plot: str, num_chapters: int, num_asides: int) -> str:
    """A story of some chapters, which share the cast but no plot and no aside."""
    plots = [plot, *rng.some([other for other in PLOTS if other != plot], num_chapters - 1)]
    asides = rng.some(ASIDES, num_asides * num_chapters)
    bridges = rng.some(BRIDGES, num_chapters - 1)
    told: list[str] = []
    for index, current in enumerate(plots):
        opening = OPENINGS if index == 0 else (bridges[index - 1],)
        if index:
            slots = {**slots, **_props(rng)}
        sentences = [rng.say(rng.skewed(opening), slots)]
        mine, asides = asides[:num_asides], asides[num_asides:]
        sentences += _chapter(rng, slots, current, mine)
        if index == num_chapters - 1:
            sentences.append(rng.say(rng.skewed(ENDINGS), slots))
        told.append(_paragraphs(rng, sentences))
    return "\n\n".join(told)


_SUBJECTS = {
    "lost": "{a job} who loses {a thing}",
    "broken": "a broken {thing}",
    "animal": "a lost {animal}",
    "storm": "a storm in {town}",
    "gift": "a gift for {friend}",
    "map": "an old map",
    "contest": "a contest in {town}",
    "stranger": "a stranger and {a food}",
    "well": "a dry well",
    "night": "a light in the {place}",
    "journey": "a long walk to {town}",
    "bake": "{a food} for {count} guests",
}


def story_document(rng: Rng) -> Document:
    slots = _cast(rng)
    plot = rng.choice(list(PLOTS))
    text = _tell(rng, slots, plot, rng.choice((1, 2, 2, 3)), rng.choice((0, 1, 2, 3)))
    if rng.chance(0.35):
        title = rng.fill(_SUBJECTS[plot], slots)
        text = f"# A story about {title}\n\n{text}"
    return Document("story", text)


def story_session(rng: Rng) -> Session:
    slots = _cast(rng)
    plot = rng.choice(list(PLOTS))
    about = rng.fill(_SUBJECTS[plot], slots)
    if rng.chance(0.5):
        about = f"{slots['name']} and {about}"
    elif rng.chance(0.2):
        about = slots["name"]
    ask = rng.fill(rng.choice(_ASKS), about=about)
    chapters = 1
    if rng.chance(0.25):
        ask, chapters = (
            ask.replace("a short story", "a story").replace("a story", "a long story"),
            2,
        )
    if rng.chance(0.15):
        ask = rng.choice(("Tell me a story.", "Tell me a story", "Write a story.", "A story, please!"))
        chapters = 1
    text = _tell(rng, slots, plot, chapters, rng.choice((0, 0, 1, 2)))
    turns = [(ask, text)]
    if rng.chance(0.5):
        turns += rng.some(_story_questions(slots), rng.randint(1, 2))
    return Session("story_chat", turns, exact=False)


def _story_questions(slots: dict[str, str]) -> list[tuple[str, str]]:
    """Questions that every story answers."""
    name, job = slots["name"], slots["job"]
    return [
        ("Who is the story about?", f"The story is about {name}."),
        ("Where does the story take place?", f"The story takes place in {slots['town']}."),
        (f"What is {name}'s job?", f"{name} is {article(job)}."),
        ("On which day does it begin?", f"It begins on {slots['day']}."),
    ]
