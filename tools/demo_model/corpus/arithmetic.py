"""Small sums with plain answers."""

from __future__ import annotations

from corpus.chat import Session
from corpus.grammar import Rng, capitalise, plural
from corpus.world import FOODS, NUMBER_WORDS, OBJECTS, first_name, is_held_out


def _operands(rng: Rng, sign: str, low: int, high: int) -> tuple[int, int]:
    """Two numbers; one pair in ten is kept for evaluation, once there are many pairs."""
    while True:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if sign == "-" and b > a:
            a, b = b, a
        if high <= 12 or is_held_out(f"{a}{sign}{b}") == rng.held_out:
            return a, b


def _sum(rng: Rng) -> tuple[str, str]:
    sign = rng.choice("++--*")
    a, b = _operands(rng, sign, *((1, 12) if sign == "*" else rng.choice(((0, 20), (1, 99)))))
    result = a + b if sign == "+" else a - b if sign == "-" else a * b
    roll = rng.random()
    if roll < 0.3:
        what = rng.choice(("What is", "What's", "what is", "How much is"))
        if rng.chance(0.3):
            return f"{what} {a}{sign}{b}?", f"{a} {sign} {b} = {result}"
        return f"{what} {a} {sign} {b}?", f"{a} {sign} {b} = {result}"
    if roll < 0.38:
        return rng.choice((f"{a}{sign}{b}", f"{a} {sign} {b}", f"{a}{sign}{b}=")), str(result)
    if roll < 0.6:
        return f"{a} {sign} {b} =", str(result)
    if roll < 0.8:
        return f"Calculate {a} {sign} {b}.", str(result)
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    return f"What is {a} {word} {b}?", f"{a} {word} {b} is {result}."


def _compare(rng: Rng) -> tuple[str, str]:
    a, b = rng.some(range(1000 if rng.chance(0.4) else 100), 2)
    if rng.chance(0.25):
        numbers = rng.some(range(100), rng.randint(3, 5))
        listed = ", ".join(map(str, numbers))
        if rng.chance(0.6):
            return f"What is the largest number: {listed}?", f"The largest is {max(numbers)}."
        return f"What is the smallest number: {listed}?", f"The smallest is {min(numbers)}."
    if rng.chance(0.5):
        return f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger."
    return f"Is {a} larger than {b}? Answer yes or no.", "Yes" if a > b else "No"


def _step(rng: Rng) -> tuple[str, str]:
    a = rng.randint(1, 998)
    roll = rng.random()
    if roll < 0.35:
        return f"Which number comes after {a}?", str(a + 1)
    if roll < 0.55:
        return f"Which number comes before {a}?", str(a - 1)
    if roll < 0.75:
        step = rng.choice((1, 2, 3, 5, 10))
        start = rng.randint(1, 30)
        shown = [start + step * i for i in range(4)]
        return f"Continue: {', '.join(map(str, shown))},", str(shown[-1] + step)
    if roll < 0.9:
        return f"Is {a} even or odd?", f"{a} is {'odd' if a % 2 else 'even'}."
    word = rng.randint(0, 20)
    return f"Write {word} as a word.", NUMBER_WORDS[word]


def _story_sum(rng: Rng) -> tuple[str, str]:
    a, b = _operands(rng, "+", 2, 20)
    name, friend = first_name(rng), first_name(rng)
    things = plural(rng.choice(FOODS + OBJECTS))
    if rng.chance(0.25) and a != b and name != friend:
        more, most = (name, a) if a > b else (friend, b)
        return (
            f"{name} has {a} {things} and {friend} has {b} {things}. Who has more {things}?",
            f"{more} has more {things}, namely {most}.",
        )
    if rng.chance(0.5):
        return (
            f"{name} has {a} {things}. {friend} gives {name} {b} more. "
            f"How many {things} does {name} have now?",
            f"{name} has {a + b} {things} now.",
        )
    a, b = max(a, b), min(a, b)
    return (
        f"{name} has {a} {things} and gives {b} to {friend}. How many {things} are left?",
        f"{capitalise(name)} has {a - b} {things} left.",
    )


def arithmetic_session(rng: Rng) -> Session:
    makers = (_sum, _sum, _sum, _compare, _step, _story_sum)
    count = rng.choice((1, 2, 3, 5))
    return Session("arithmetic", [rng.choice(makers)(rng) for _ in range(count)])
