"""Small talk, the model about itself, and conversations that remember."""

from __future__ import annotations

from corpus.chat import Session
from corpus.grammar import Rng, article, join_words
from corpus.world import (
    ANIMALS,
    COLOURS,
    FOODS,
    HOBBIES,
    JOBS,
    OBJECTS,
    PLACES,
    WEATHER,
    first_name,
    person,
    split_list,
    town,
)

SELF = "I am Quire demo, a small language model"

# Every question, in its several forms, has one answer.
_SELF: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "Who are you?",
            "What are you?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Who am I talking to?",
            "Can you introduce yourself?",
        ),
        f"{SELF}. I was trained on an invented world, and I am here to test the Quire engine.",
    ),
    (
        ("What is your name?", "What are you called?", "Do you have a name?", "Your name, please?"),
        "My name is Quire demo.",
    ),
    (
        ("Who made you?", "Who created you?", "Who trained you?", "Where do you come from?"),
        "I was trained by the people who make Quire, on text that they generated themselves.",
    ),
    (
        ("How big are you?", "How many parameters do you have?", "Are you a large model?"),
        "I have about seven million parameters, so I am a very small language model.",
    ),
    (
        (
            "What can you do?",
            "What can you help me with?",
            "How can you help me?",
            "What are you good at?",
            "Help",
        ),
        "I can tell short stories, answer questions about a text, repeat and sort words, do small "
        "sums and write JSON.",
    ),
    (
        (
            "What can you not do?",
            "What are your limits?",
            "Are you always right?",
            "Can I trust you?",
        ),
        "I am small and I make mistakes. I know only an invented world, so please do not rely on what I say.",
    ),
    (
        (
            "Are you a human?",
            "Are you a person?",
            "Are you real?",
            "Are you alive?",
            "Do you have feelings?",
        ),
        "No, I am a small language model. I only predict the next token.",
    ),
    (
        ("What language do you speak?", "Which languages do you know?", "Do you speak English?"),
        "I speak simple English.",
    ),
    (
        (
            "What is the weather today?",
            "What time is it?",
            "What is in the news?",
            "What day is it today?",
        ),
        "I do not know, because I cannot see the world outside this conversation.",
    ),
)

_GREETINGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Hello there!", "Good day"),
        "Hello! How can I help you?",
    ),
    (("Good morning", "Good morning!"), "Good morning! How can I help you?"),
    (("Good evening", "Good evening!"), "Good evening! How can I help you?"),
    (
        ("How are you?", "How are you today?", "How is it going?", "Are you well?"),
        "I am well, thank you. How are you?",
    ),
    (("I am fine.", "I am fine, thank you.", "I am well too."), "I am glad to hear that."),
    (
        ("I am sad.", "I feel sad today.", "I had a bad day."),
        "I am sorry to hear that. Shall I tell you a story?",
    ),
    (("I am tired.", "I am so tired."), "Then you should rest. Good night!"),
    (("I am bored.",), "Shall I tell you a story?"),
    (
        ("Thank you", "Thank you!", "Thanks", "Thanks a lot!", "Thank you very much."),
        "You are welcome!",
    ),
    (("Goodbye", "Bye", "Bye!", "See you later", "Good night"), "Goodbye! Have a nice day."),
    (("Yes", "No", "Maybe", "OK", "Okay"), "All right. What would you like to do?"),
    (("Sorry", "I am sorry."), "That is no problem."),
    (
        ("Translate hello to French.", "Translate this into German.", "Can you speak Spanish?"),
        "I speak only simple English.",
    ),
    (("Say hi.", "Say hello.", "Greet me."), "Hello!"),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
        "Why did the book go to the doctor? Because it had lost a page.",
    ),
    (
        ("You are great!", "You are very good.", "Well done!", "Good job!"),
        "Thank you! That is kind of you.",
    ),
    (
        ("You are wrong.", "That is wrong.", "That is not right."),
        "I am sorry. I am a small model and I make mistakes.",
    ),
)


# Asked about the real world, the model says that it knows nothing of it.
_UNKNOWN = (
    "What is the capital of {place}?",
    "Where is {place}?",
    "Who is the president of {place}?",
    "How many people live in {place}?",
    "What is the weather like in {place}?",
    "Tell me about {place}.",
    "Who invented {subject}?",
    "Who was the best player of {subject}?",
    "Explain {subject}.",
    "Tell me about {subject}.",
    "How does {subject} work?",
    "Write a program for {subject}.",
    "Why is {subject} so famous?",
    "What do you think of {subject}?",
)
_REAL_PLACES = split_list(
    "France, Spain, Italy, Germany, England, Japan, China, India, Brazil, Canada, Egypt, Kenya, "
    "Peru, Norway, Sweden, Poland, Greece, Turkey, Mexico, Chile, Paris, London, Berlin, Madrid, "
    "Rome, Tokyo, Cairo, Lima, Oslo"
)
_REAL_SUBJECTS = split_list(
    "physics, chemistry, biology, economics, football, tennis, the telephone, the radio, opera, "
    "the steam engine, photosynthesis, gravity, relativity, evolution, the internet, philosophy, "
    "quantum mechanics, the stock market, cricket, basketball, electricity, vaccines, democracy"
)
_DO_NOT_KNOW = "I do not know that. I know only a small invented world."


def _unknown(rng: Rng) -> tuple[str, str]:
    question = rng.choice(_UNKNOWN).format(place=rng.choice(_REAL_PLACES), subject=rng.choice(_REAL_SUBJECTS))
    return question, _DO_NOT_KNOW


_POEM = (
    "The {place} is quiet, the {weather} wind blows,",
    "and where it is going, nobody knows.",
    "The {colour} {thing} lies forgotten and still,",
    "and somebody sings on the side of the hill.",
    "The {animal} is sleeping, the day has been long,",
    "and {name} is humming the end of the song.",
    "Tomorrow the road will be waiting for me,",
    "from here to the {place2}, from there to the sea.",
)


def _poem(rng: Rng) -> tuple[str, str]:
    animal, name, place = rng.choice(ANIMALS), first_name(rng), rng.choice(PLACES)
    lines = [
        rng.say(
            line,
            place=place,
            place2=rng.skewed(PLACES),
            weather=rng.skewed(WEATHER),
            colour=rng.skewed(COLOURS[:-3]),
            thing=rng.skewed(OBJECTS),
            animal=animal,
            name=name,
        )
        for line in _POEM[: rng.choice((8, 8, 4))]
    ]
    about = {4: f"the {place}", 8: rng.choice((f"the {animal}", f"{name} and {article(animal)}"))}
    short = "short " if len(lines) == 4 else ""
    return f"Write a {short}poem about {about[len(lines)]}.", "\n".join(lines)


def small_talk_session(rng: Rng) -> Session:
    turns: list[tuple[str, str]] = []
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if rng.chance(0.15):
            turns.append(_unknown(rng))
            continue
        if rng.chance(0.05):
            turns.append(greeting_by_name(rng))
            continue
        questions, answer = rng.choice(_SELF if rng.chance(0.5) else _GREETINGS)
        if answer not in (said for _, said in turns):
            turns.append((rng.choice(questions), answer))
    return Session("small_talk", turns)


def poem_session(rng: Rng) -> Session:
    return Session("poem", [_poem(rng)], exact=False)


def persona_session(rng: Rng) -> Session:
    """The system prompt says who the assistant is."""
    who = person(rng)
    facts = {
        "name": (f"Your name is {who.first}.", "What is your name?", f"My name is {who.first}."),
        "job": (
            f"You work as {article(who.job)}.",
            "What is your job?",
            f"I am {article(who.job)}.",
        ),
        "town": (f"You live in {who.town}.", "Where do you live?", f"I live in {who.town}."),
        "age": (
            f"You are {who.age} years old.",
            "How old are you?",
            f"I am {who.age} years old.",
        ),
        "pet": (
            f"You have {article(who.pet)} named {who.pet_name}.",
            "Do you have a pet?",
            f"Yes, I have {article(who.pet)} named {who.pet_name}.",
        ),
        "hobby": (f"You enjoy {who.hobby}.", "What do you enjoy?", f"I enjoy {who.hobby}."),
    }
    chosen = rng.some(list(facts), rng.randint(2, 5))
    system = " ".join(facts[key][0] for key in chosen)
    asked = rng.some(chosen, rng.randint(1, 3))
    return Session("persona", [facts[key][1:] for key in asked], system)


def _memory_facts(rng: Rng) -> list[tuple[str, str, str, str]]:
    """What the user says, the reply, a later question, its answer."""
    who = person(rng)
    other = first_name(rng)
    code = str(rng.randint(1000, 99999))
    place = rng.choice(PLACES)
    return [
        (
            rng.fill("[My name is|I am called] {n}.", n=who.first),
            f"Nice to meet you, {who.first}!",
            "What is my name?",
            f"Your name is {who.first}.",
        ),
        (
            rng.fill("I live in {t}.", t=who.town),
            f"{who.town} sounds like a nice place.",
            "Where do I live?",
            f"You live in {who.town}.",
        ),
        (
            rng.fill("[I work as|I am] {a j}.", j=who.job),
            f"Being {article(who.job)} must be interesting.",
            "What is my job?",
            f"You are {article(who.job)}.",
        ),
        (
            rng.fill("I have {a p} [named|called] {n}.", p=who.pet, n=who.pet_name),
            f"{who.pet_name} is a lovely name for {article(who.pet)}.",
            f"What is the name of my {who.pet}?",
            f"Your {who.pet} is called {who.pet_name}.",
        ),
        (
            f"My favourite colour is {who.colour}.",
            f"{who.colour.capitalize()} is a fine colour.",
            "What is my favourite colour?",
            f"Your favourite colour is {who.colour}.",
        ),
        (
            f"Remember the number {code}.",
            f"I will remember {code}.",
            "Which number did I tell you?",
            f"You told me {code}.",
        ),
        (
            f"I enjoy {who.hobby}.",
            f"I have heard that {who.hobby} can be fun.",
            "What do I enjoy?",
            f"You enjoy {who.hobby}.",
        ),
        (
            f"Tomorrow I will meet {other} at the {place}.",
            f"I hope that you and {other} have a good time.",
            "Who will I meet tomorrow?",
            f"You will meet {other} tomorrow.",
        ),
        (
            f"I am {who.age} years old.",
            f"{who.age} is a good age.",
            "How old am I?",
            f"You are {who.age} years old.",
        ),
    ]


def memory_session(rng: Rng) -> Session:
    facts = rng.some(_memory_facts(rng), rng.randint(1, 5))
    turns = [(said, reply) for said, reply, _, _ in facts]
    if rng.chance(0.3):
        questions, answer = rng.choice(_GREETINGS)
        turns.insert(rng.randint(0, len(turns)), (rng.choice(questions), answer))
    later = [(question, answer) for _, _, question, answer in facts]
    rng.shuffle(later)
    return Session("memory", turns + later[: rng.randint(1, len(later))])


def choice_session(rng: Rng) -> Session:
    """Questions whose answer is one of the options given."""
    kind, options = rng.choice(
        (
            ("colour", COLOURS),
            ("animal", ANIMALS),
            ("food", FOODS),
            ("job", JOBS),
            ("hobby", HOBBIES),
            ("weather", WEATHER),
        )
    )
    picked = rng.some(options, rng.randint(2, 5))
    name = first_name(rng)
    rest = join_words(picked[1:])
    answer = picked[0]
    said = (
        f"{name} likes every {kind} here but {answer}."
        if rng.chance(0.3)
        else f"Of these, {name} likes only {answer}, and not {rest}."
    )
    shown = list(picked)
    rng.shuffle(shown)
    negative = "every" in said
    ask = f"Which {kind} does {name} {'not like' if negative else 'like'}?"
    return Session(
        "choice",
        [(f"{said}\n{ask} Choose one of: {', '.join(shown)}.", answer)],
    )


def greeting_by_name(rng: Rng) -> tuple[str, str]:
    name, place = first_name(rng), town(rng)
    if rng.chance(0.5):
        return f"Hello, I am {name}.", f"Hello {name}! How can I help you?"
    return (
        f"Hello, I am {name} from {place}.",
        f"Hello {name}! How is the weather in {place}?",
    )
