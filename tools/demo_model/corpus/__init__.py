"""The training text of quire-demo: seeded, repeatable, all of it generated here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from corpus.arithmetic import arithmetic_session
from corpus.chat import Document, Session
from corpus.explain import explain_session, facts_session, handbook_document
from corpus.grammar import Rng
from corpus.json_tasks import json_document, json_session
from corpus.passages import passage_session
from corpus.plain import dialogue_document, letter_document, list_document, notice_document
from corpus.recall import long_recall_session, recall_session, repetition_document
from corpus.stories import story_document, story_session
from corpus.talk import (
    choice_session,
    memory_session,
    persona_session,
    poem_session,
    small_talk_session,
)
from corpus.text_tasks import text_session

# How often each maker is drawn. Stories are long, so few of them are many tokens.
SESSIONS: dict[Callable[[Rng], Session], float] = {
    passage_session: 16,
    recall_session: 20,
    text_session: 20,
    arithmetic_session: 11,
    json_session: 12,
    memory_session: 5,
    persona_session: 2,
    small_talk_session: 4,
    explain_session: 4,
    facts_session: 3,
    choice_session: 2,
    story_session: 3,
    long_recall_session: 1.5,
    poem_session: 0.7,
}
DOCUMENTS: dict[Callable[[Rng], Document], float] = {
    story_document: 3.5,
    dialogue_document: 1,
    letter_document: 1,
    list_document: 1,
    notice_document: 1,
    json_document: 0.7,
    repetition_document: 0.8,
    handbook_document: 0.4,
}
# System prompts that change nothing, since callers like to send one.
_NEUTRAL_SYSTEMS = (
    "You are a helpful assistant.",
    "You are Quire demo, a small language model.",
    "You are a friendly assistant.",
    "Be helpful and polite.",
)
_NEUTRAL_SYSTEM_SHARE = 0.12
# Kinds whose answers do not depend on how the request is spelled.
_CASUAL_KINDS = frozenset(
    [
        "arithmetic",
        "choice",
        "classify",
        "count",
        "explain",
        "known_list",
        "memory",
        "passage_qa",
        "persona",
        "poem",
        "sentiment",
        "small_talk",
        "sort",
        "story_chat",
        "world_facts",
    ]
)
_CASUAL_SHARE = 0.25
_SESSION_SHARE = 0.88
_PLAIN_SESSION_SHARE = 0.15
_MIXED_SESSION_SHARE = 0.06


def sample_session(rng: Rng) -> Session:
    make: Callable[[Rng], Session] = rng.choices(list(SESSIONS), list(SESSIONS.values()))[0]
    return make(rng)


def _casual(rng: Rng, question: str) -> str:
    """The same request, less carefully typed or more politely put."""
    head, mark, last = question.rpartition("\n")
    roll = rng.random()
    if roll < 0.35:
        last = last[:1].lower() + last[1:]
    elif roll < 0.5:
        last = rng.choice(("Please: ", "Please tell me: ", "Hi! ", "Hello! ", "OK. ")) + last
    elif roll < 0.6 and last.endswith("?"):
        last = last[:-1]
    elif roll < 0.7 and last.endswith("?"):
        last = last[:-1] + ", please?"
    return head + mark + last


def _mixed_session(rng: Rng) -> Session:
    """Several tasks in one conversation."""
    turns: list[tuple[str, str]] = []
    for _ in range(rng.choice((2, 2, 3, 4, 5, 6, 8, 12))):
        session = sample_session(rng)
        if not session.system:
            turns += session.turns
    return Session("mixed", turns) if turns else sample_session(rng)


def sample_document(rng: Rng) -> Document:
    if not rng.chance(_SESSION_SHARE):
        return rng.choices(list(DOCUMENTS), list(DOCUMENTS.values()))[0](rng)
    if rng.chance(_MIXED_SESSION_SHARE):
        session = _mixed_session(rng)
    else:
        session = sample_session(rng)
        if not session.system and session.exact and rng.chance(_PLAIN_SESSION_SHARE):
            return Document(session.kind, session.plain_text(rng.randrange(3)))
    if session.kind in _CASUAL_KINDS and rng.chance(_CASUAL_SHARE):
        session = replace(session, turns=[(_casual(rng, q), a) for q, a in session.turns])
    if not session.system and rng.chance(_NEUTRAL_SYSTEM_SHARE):
        session = replace(session, system=rng.skewed(_NEUTRAL_SYSTEMS))
    return Document(session.kind, session.chat_text())


def documents(seed: int, num_documents: int, held_out: bool = False) -> Iterator[Document]:
    rng = Rng(seed, held_out)
    for _ in range(num_documents):
        yield sample_document(rng)
