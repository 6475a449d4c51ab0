"""A grammar library on the cases of compare_libraries.py, which starts this in the library's own environment.

    python benchmarks/grammar/libraries.py xgrammar|llguidance TOKENIZER_DIRECTORY CASES EOS_TOKEN_ID

Speaks as grammar_bench does: for each line on standard input, a line of JSON with nanoseconds. A schema that
the library refuses has null in its place, and no tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol


class Matcher(Protocol):
    def fill(self) -> None: ...
    def accept(self, token_id: int) -> bool: ...


class Library(Protocol):
    def forget(self) -> None: ...
    def compile(self, schema: str) -> Any: ...
    def matcher(self, compiled: Any) -> Matcher: ...


class Xgrammar:
    """One thread compiles, as one does a request of ours. It keeps what grammars have in common."""

    def __init__(self, directory: Path, eos: int) -> None:
        import xgrammar
        from tokenizers import Tokenizer

        self._xgrammar = xgrammar
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        vocab = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        self._info = xgrammar.TokenizerInfo(
            [token for token, _ in vocab],
            vocab_type=xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=len(vocab),
            stop_token_ids=[eos],
        )
        self.forget()
        self._mask = xgrammar.allocate_token_bitmask(1, len(vocab))

    def forget(self) -> None:
        self._compiler = self._xgrammar.GrammarCompiler(self._info, max_threads=1)

    def compile(self, schema: str) -> Any:
        return self._compiler.compile_json_schema(schema)

    def matcher(self, compiled: Any) -> Matcher:
        made = self._xgrammar.GrammarMatcher(compiled)
        mask = self._mask

        class Made:
            def fill(self) -> None:
                made.fill_next_token_bitmask(mask)

            def accept(self, token_id: int) -> bool:
                return bool(made.accept_token(token_id))

        return Made()


class Llguidance:
    """It compiles as it goes: what a schema costs is in the masks, too. Nothing is cached."""

    def __init__(self, directory: Path, eos: int) -> None:
        import llguidance
        import llguidance.numpy

        self._llguidance = llguidance
        self._numpy = llguidance.numpy
        text = (directory / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = llguidance.LLTokenizer(text, eos_token=eos)
        self._mask = llguidance.numpy.allocate_token_bitmask(1, self._tokenizer.vocab_size)

    def forget(self) -> None:
        pass

    def compile(self, schema: str) -> Any:
        matcher = self._llguidance.LLMatcher
        made = matcher(self._tokenizer, matcher.grammar_from_json_schema(schema))
        if made.is_error():
            raise ValueError(made.get_error())
        return made

    def matcher(self, compiled: Any) -> Matcher:
        made, mask, fill_mask = compiled.deep_copy(), self._mask, self._numpy.fill_next_token_bitmask

        class Made:
            def fill(self) -> None:
                fill_mask(made, mask)

            def accept(self, token_id: int) -> bool:
                return bool(made.consume_token(token_id))

        return Made()


def nanoseconds(work: Callable[[], object]) -> int:
    begin = perf_counter_ns()
    work()
    return perf_counter_ns() - begin


def run_round(library: Library, cases: list[dict[str, Any]]) -> dict[str, list[int | None]]:
    times: dict[str, list[int | None]] = {"compile": [], "known": [], "mask": [], "accept": []}
    library.forget()
    library.compile('{"type": "boolean"}')
    for case in cases:
        schema = case["schema"]
        begin = thread_time_ns()
        try:
            compiled = library.compile(schema)
        except Exception as error:
            print(f"{case['shape']}: {error}", file=sys.stderr)
            num_tokens = sum(map(len, case["documents"]))
            times["compile"].append(None)
            times["known"].append(None)
            times["mask"] += [None] * num_tokens
            times["accept"] += [None] * num_tokens
            continue
        times["compile"].append(thread_time_ns() - begin)
        times["known"].append(nanoseconds(partial(library.compile, schema)))
        for document in case["documents"]:
            matcher = library.matcher(compiled)
            fill, accept = matcher.fill, matcher.accept
            for token_id in document:
                begin = perf_counter_ns()
                fill()
                middle = perf_counter_ns()
                accepted = accept(token_id)
                end = perf_counter_ns()
                if not accepted:
                    raise RuntimeError(f"a token of a document was refused under {schema}")
                times["mask"].append(middle - begin)
                times["accept"].append(end - middle)
    return times


def main() -> None:
    name, directory, cases_file, eos = sys.argv[1:]
    made: dict[str, Callable[[Path, int], Library]] = {"xgrammar": Xgrammar, "llguidance": Llguidance}
    library = made[name](Path(directory), int(eos))
    cases = json.loads(Path(cases_file).read_text())
    for _ in sys.stdin:
        print(json.dumps(run_round(library, cases)), flush=True)


if __name__ == "__main__":
    main()
