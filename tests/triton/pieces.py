"""Answers that are to come in more than one piece; without a client, for a machine that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Piece = TypeVar("Piece")


def in_pieces(ask: Callable[[], list[Piece]]) -> list[Piece]:
    """The first answer in more than one piece: a machine that is busy elsewhere may join all deltas
    of one, hardly of ten."""
    for _ in range(10):
        if len(pieces := ask()) > 1:
            return pieces
    raise AssertionError(f"ten answers came in one piece each, the last: {pieces}")
