"""Prompts of an exact number of tokens."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from random import Random

from quire._core import Tokenizer

_ENOUGH_WORDS = 2048


class TokenSource:
    """Draws prompts from a model directory's vocabulary."""

    def __init__(self, directory: str) -> None:
        """Raises ValueError for a directory without a tokenizer and without a config.json."""
        self.directory = directory
        self.tokenizer: Tokenizer | None = None
        if (Path(directory) / "tokenizer.json").is_file():
            self.tokenizer = Tokenizer(directory)
        else:
            try:
                config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
                self._vocab_size = int(config["vocab_size"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"'{directory}' must be a directory with tokenizer.json, or with config.json "
                    f"and its vocab_size: {error}"
                ) from None

    def count(self, text: str) -> int:
        """Tokens of a text, with those that the tokenizer adds."""
        return len(self._need_tokenizer().encode(text))

    def draw_ids(self, count: int, rng: Random) -> list[int]:
        """Token ids, none of them special."""
        return rng.choices(self._plain_ids, k=count)

    def draw_text(self, count: int, rng: Random) -> str:
        """A text of exactly ``count`` tokens, with those that the tokenizer adds.

        Raises ValueError if the tokenizer has no words that make such texts.
        """
        encode = self._need_tokenizer().encode
        num_words = max(count - len(encode("")), 1)
        for _ in range(8):
            text = "".join(rng.choices(self._words, k=num_words))
            if len(encode(text)) == max(count, 1):
                return text
        raise ValueError(
            f"tokenizer '{self.directory}': no text of {count} tokens was found; use --prompt-form ids"
        )

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(
                f"tokenizer '{self.directory}' has no tokenizer.json, which prompts of text need"
            )
        return self.tokenizer

    @cached_property
    def _plain_ids(self) -> list[int]:
        if self.tokenizer is None:
            return list(range(self._vocab_size))
        ids = [i for i in range(self.tokenizer.vocab_size) if not self.tokenizer.is_special(i)]
        return [i for i in ids if self.tokenizer.id_to_token(i) is not None]

    @cached_property
    def _words(self) -> list[str]:
        """A blank and letters each, one token by itself: beside each other they stay so."""
        tokenizer = self._need_tokenizer()
        ids = list(self._plain_ids)
        Random(0).shuffle(ids)
        words = []
        for i in ids:
            word = tokenizer.decode([i])
            if word[:1] == " " and word[1:].isascii() and word[1:].isalpha():
                if tokenizer.encode(word, add_special_tokens=False) == [i]:
                    words.append(word)
                if len(words) == _ENOUGH_WORDS:
                    break
        if len(words) < 16:
            raise ValueError(
                f"tokenizer '{self.directory}' has too few words for prompts of text; use --prompt-form ids"
            )
        return words
