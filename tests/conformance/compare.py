"""Feeds the same traces to vLLM's scheduler and to Quire's and compares every decision.

    python tests/conformance/compare.py --seeds 0:10000 --vllm-python .venv-vllm/bin/python \\
        --runner build/default/tests/tools/quire_trace_runner

Or, without vLLM, to the answers it once gave (``record.py`` makes such a file)::

    python tests/conformance/compare.py --recorded tests/conformance/recorded.jsonl --runner ...

All that a line says must agree: who is scheduled, in which order and with how many tokens, who is
preempted, what the cache held, who finished, how many blocks are free; and at the end every output. The few
differences that are meant have a name and a reason in RULES; each is recognised where it shows, and the rest
of that trace is then not compared. Anything else ends in exit status 1, with a trace as small as shows it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from trace_generator import Trace, generate_trace

MAX_UNEXPLAINED = 5  # then it is time to look at them

Line = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A difference that is meant: ``explains(expected, actual, expected_end)`` is asked for the first two
    lines that differ, and for how vLLM's answer ends. ``actual["rule"]`` is what the runner saw coming."""

    name: str
    reason: str
    explains: Callable[[Line, Line, Line], bool]
    # Of traces that it may cut short: a bug must not be able to hide behind it.
    max_share: float = 0.005


def _passed_over(expected: Line, actual: Line, _: Line) -> bool:
    announced = actual.get("rule") == "passed_over_after_front_preemption"
    return announced and not actual["tokens"].keys() <= expected["tokens"].keys()


def _uncomputed_hits(expected: Line, actual: Line, expected_end: Line) -> bool:
    more = any(hit > actual["hits"].get(name, 0) for name, hit in expected["hits"].items())
    return more and expected_end.get("uncomputed_hits", 0) > 0


def _others_first(expected: Line, actual: Line, _: Line) -> bool:
    announced = actual.get("rule") == "passed_over_for_adapters"
    return announced and list(expected["tokens"]) != list(actual["tokens"])


RULES = (
    Rule(
        "passed_over_for_adapters",
        "Requests that vLLM passes over, because the adapters of others have all slots, it keeps in a queue "
        "of their own, in front of all that wait: a younger one is then served before an older one that was "
        "not passed over. Quire's stay where they are.",
        _others_first,
        max_share=0.02,  # three traces in ten have adapters
    ),
    Rule(
        "passed_over_after_front_preemption",
        'Under "priority" the victim may stand in front of the request that needs a block. vLLM then moves '
        "its place in the list back only if the victim was scheduled in this step; if it was not (its last "
        "token is in flight), the next running request is passed over once. Quire passes nobody over.",
        _passed_over,
    ),
    Rule(
        "uncomputed_hits",
        "vLLM makes blocks findable when they are scheduled, and leaves them so when their request is "
        "preempted in the same step: later requests read keys and values that nobody computed. Quire "
        "forgets such blocks.",
        _uncomputed_hits,
    ),
)


@dataclass(frozen=True)
class Difference:
    """The first lines that differ (None: the answer had ended), and the name of the rule that explains it."""

    expected: str | None
    actual: str | None
    rule: str | None


def find_difference(expected: list[str], actual: list[str]) -> Difference | None:
    """Compares two answers, line by line; the order within a line counts too."""
    for i in range(max(len(expected), len(actual))):
        ours = actual[i] if i < len(actual) else None
        theirs = expected[i] if i < len(expected) else None
        if ours == theirs:
            continue
        if ours is None or theirs is None:
            return Difference(theirs, ours, None)
        line = json.loads(ours)
        announced = line.pop("rule", None)
        if json.dumps(line) == theirs:
            continue  # it did not come to that
        line["rule"] = announced
        return Difference(theirs, ours, _rule(json.loads(theirs), line, json.loads(expected[-1])))
    return None


def _rule(expected: Line, actual: Line, expected_end: Line) -> str | None:
    if "tokens" not in expected or "tokens" not in actual:
        return None
    return next((rule.name for rule in RULES if rule.explains(expected, actual, expected_end)), None)


class Player:
    """A program that reads traces from stdin and answers each with lines up to its end (or an error)."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            self._process.kill()
        self._process.wait()

    def play(self, trace: Trace) -> list[str]:
        """Raises RuntimeError when the program ends before its answer does; its stderr says why."""
        assert self._process.stdin is not None and self._process.stdout is not None
        lines: list[str] = []
        try:
            self._process.stdin.writelines(json.dumps(event) + "\n" for event in trace)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._command[0]} has ended") from None
        for line in self._process.stdout:
            lines.append(line.rstrip("\n"))
            if lines[-1].startswith(('{"end"', '{"error"')):
                return lines
        raise RuntimeError(f"{self._command[0]} has ended")


@dataclass(frozen=True)
class Case:
    """A trace, what to call it, and how vLLM answers it and any part of it (which a recording cannot)."""

    name: str
    trace: Trace
    expected: list[str]
    ask: Callable[[Trace], list[str]] | None = None


@dataclass
class Report:
    num_traces: int = 0
    num_lines: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    unexplained: list[tuple[Case, Difference]] = field(default_factory=list)

    def too_many(self) -> list[str]:
        """Names the rules that explain more than they should."""
        return [
            rule.name
            for rule in RULES
            if self.rules[rule.name] > max(2, int(rule.max_share * self.num_traces))
        ]

    def passed(self) -> bool:
        return self.num_traces > 0 and not self.unexplained and not self.too_many()

    def print(self) -> None:
        cut = sum(self.rules.values())
        print(
            f"{self.num_traces} traces, {self.num_lines} lines: "
            f"{self.num_traces - cut - len(self.unexplained)} agree to the end, {cut} differ as meant, "
            f"{len(self.unexplained)} differ"
        )
        for rule in RULES:
            print(f"  {self.rules[rule.name]:6}  {rule.name}")
            if self.rules[rule.name] > 0:
                print(textwrap.indent(textwrap.fill(rule.reason, 96), " " * 10))
        for name in self.too_many():
            print(f"too many by {name}")


def compare(cases: Iterable[Case], runner: Player) -> Report:
    """Compares until there is enough to look at."""
    report = Report()
    for case in cases:
        report.num_traces += 1
        report.num_lines += len(case.expected)
        difference = find_difference(case.expected, runner.play(case.trace))
        if difference is None:
            continue
        if difference.rule is not None:
            report.rules[difference.rule] += 1
            continue
        report.unexplained.append((case, difference))
        if len(report.unexplained) == MAX_UNEXPLAINED:
            break
    return report


def shrink(trace: Trace, differs: Callable[[Trace], bool]) -> Trace:
    """Drops events and parts of them for as long as the trace ``differs``; its first and last lines stay."""
    changed = True
    while changed:
        changed = False
        for i in range(len(trace) - 2, 0, -1):
            shorter = trace[:i] + trace[i + 1 :]
            if differs(shorter):
                trace, changed = shorter, True
        for i in range(1, len(trace) - 1):
            for simpler in _simpler(trace[i]):
                shorter = [*trace[:i], simpler, *trace[i + 1 :]]
                if differs(shorter):
                    trace, changed = shorter, True
                    break
    return trace


def _simpler(event: dict[str, object]) -> Iterator[dict[str, object]]:
    steps, request = event.get("step"), event.get("add")
    if isinstance(steps, int):
        for fewer in sorted({1, steps // 2, steps - 1} - {0, steps}):
            yield {"step": fewer}
    if isinstance(request, dict):
        for key in sorted({"drafts", "output", "cache_salt", "priority"} & request.keys()):
            yield {"add": {name: value for name, value in request.items() if name != key}}


def show(case: Case, difference: Difference, runner: Player) -> None:
    """Prints the trace, shrunk if vLLM can be asked, and both lines."""
    trace, ask = case.trace, case.ask
    if ask is not None:

        def first_difference(part: Trace) -> Difference | None:
            found = find_difference(ask(part), runner.play(part))
            return found if found is not None and found.rule is None else None

        trace = shrink(trace, lambda part: first_difference(part) is not None)
        difference = first_difference(trace) or difference
    print(f"\n{case.name} differs:")
    for event in trace:
        print(f"  {json.dumps(event)}")
    print(f"vLLM:  {difference.expected}\nQuire: {difference.actual}")


def generated(seeds: range, vllm: Player) -> Iterator[Case]:
    for seed in seeds:
        trace = generate_trace(seed)
        yield Case(f"seed {seed}", trace, vllm.play(trace), vllm.play)


def from_file(path: Path, vllm: Player) -> Iterator[Case]:
    """The traces in a file of JSON lines."""
    trace: Trace = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        event = json.loads(text) if text.strip() else {}
        if "config" in event:
            trace = []
        trace.append(event)
        if "end" in event:
            yield Case(f"{path}:{number}", trace, vllm.play(trace), vllm.play)


def recorded(path: Path) -> Iterator[Case]:
    header, *entries = map(json.loads, path.read_text().splitlines())
    print(f"{path}: answers of vLLM {header['vllm']}")
    for entry in entries:
        yield Case(f"seed {entry['seed']}", entry["trace"], list(map(json.dumps, entry["answer"])))


def oracle(vllm_python: str) -> Player:
    return Player([vllm_python, str(Path(__file__).with_name("vllm_oracle.py"))])


def parse_seeds(text: str) -> range:
    first, last = map(int, text.split(":"))
    return range(first, last)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares Quire's scheduler with vLLM's.")
    parser.add_argument("--runner", required=True, help="the built quire_trace_runner")
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="made by setup_vllm.sh")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=parse_seeds, default="0:1000", metavar="FIRST:LAST")
    what.add_argument("--traces", type=Path, metavar="FILE", help="these traces, not generated ones")
    what.add_argument("--recorded", type=Path, metavar="FILE", help="recorded answers, without vLLM")
    args = parser.parse_args()
    for program in [args.runner] if args.recorded else [args.runner, args.vllm_python]:
        if not Path(program).is_file():
            parser.error(f"{program} is not there: build the runner, and run setup_vllm.sh")
    with Player([args.runner]) as runner:
        if args.recorded:
            return conclude(compare(recorded(args.recorded), runner), runner)
        with oracle(args.vllm_python) as vllm:
            cases = from_file(args.traces, vllm) if args.traces else generated(args.seeds, vllm)
            return conclude(compare(cases, runner), runner)


def conclude(report: Report, runner: Player) -> int:
    for case, difference in report.unexplained:
        show(case, difference, runner)
    report.print()
    return 0 if report.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
