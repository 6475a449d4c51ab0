"""The grammar room beside the Python packages xgrammar and llguidance: schemas to masks.

    python benchmarks/grammar/train_large_tokenizer.py TOKENIZER_DIRECTORY
    python -m venv PEERS && PEERS/bin/pip install xgrammar==0.2.8 llguidance tokenizers
    python benchmarks/grammar/compare_libraries.py TOKENIZER_DIRECTORY --peers PEERS/bin/python \
        --program build/default/benchmarks/grammar/grammar_bench [--rounds 7] [--libraries quire,xgrammar]

The schemas and documents of cases.py, in the same tokens for all; one thread each. The libraries take turns,
and what is told of a schema or a token is the median of the rounds, so that what disturbs the machine meets
none of them: the percentiles are over schemas and tokens, not over accidents.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from cases import make_cases
from tokenizers import Tokenizer

EOS_TOKEN = "<|reserved_1|>"
ROWS = {
    "compile": ("compile a schema, ms", 1e6),
    "known": ("a schema that is known, µs", 1e3),
    "mask": ("mask of a token, µs", 1e3),
    "accept": ("accept a token, µs", 1e3),
}
Times = dict[str, list[int | None]]


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


class Process:
    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout

    def round(self) -> Times:
        print("go", file=self._in, flush=True)
        line = self._out.readline()
        if not line:
            raise RuntimeError(f"it ended: {self._process.args!r}")
        times: Times = json.loads(line)
        return times


def medians(rounds: list[Times], row: str) -> list[float | None]:
    by_place = zip(*(times[row] for times in rounds), strict=True)
    return [None if None in values else statistics.median(values) for values in by_place]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True, help="a Python that has the packages")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--libraries", default="quire,xgrammar,llguidance")
    parser.add_argument("--slowest", type=int, default=0, help="prints so many of the slowest ratios")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    eos = tokenizer.token_to_id(EOS_TOKEN)
    cases: list[dict[str, Any]] = [
        {
            "shape": case.shape,
            "schema": case.schema,
            "documents": [tokenizer.encode(d).ids for d in case.documents],
        }
        for case in make_cases()
    ]
    num_tokens = sum(len(ids) for case in cases for ids in case["documents"])
    names = arguments.libraries.split(",")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.json"
        file.write_text(json.dumps(cases))
        common = [str(arguments.tokenizer), str(file), str(eos)]
        script = str(Path(__file__).with_name("libraries.py"))
        processes = {
            name: Process(
                [str(arguments.program), *common]
                if name == "quire"
                else [str(arguments.peers), script, name, *common]
            )
            for name in names
        }
        rounds: dict[str, list[Times]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            for name in names:
                rounds[name].append(processes[name].round())
    figures = {name: {row: medians(rounds[name], row) for row in ROWS} for name in names}
    print(f"{len(cases)} schemas, {num_tokens:,} tokens, {arguments.rounds} rounds")
    for name in names:
        refused = [
            case["shape"] for case, t in zip(cases, figures[name]["compile"], strict=True) if t is None
        ]
        if refused:
            print(f"{name} refuses {len(refused)}: {', '.join(sorted(set(refused)))}; they count for nobody")
    print("| p50 / p99 of |", " | ".join(names), "|\n|---|" + "---|" * len(names))
    for row, (title, unit) in ROWS.items():
        columns = [figures[name][row] for name in names]
        kept = [i for i in range(len(columns[0])) if all(column[i] is not None for column in columns)]
        cells = []
        for column in columns:
            values = [float(column[i] or 0) / unit for i in kept]
            cells.append(f"{percentile(values, 0.5):.2f} / {percentile(values, 0.99):.2f}")
        print(f"| {title} | {' | '.join(cells)} |")
        if arguments.slowest > 0 and len(columns) > 1:
            ratios = sorted(
                ((float(columns[0][i] or 0) / float(columns[1][i] or 1), i) for i in kept), reverse=True
            )
            for ratio, i in ratios[: arguments.slowest]:
                what = cases[i]["shape"] if row in ("compile", "known") else f"token {i}"
                print(f"    {what}: {ratio:.2f} x, {float(columns[0][i] or 0) / unit:.2f}")


if __name__ == "__main__":
    main()
