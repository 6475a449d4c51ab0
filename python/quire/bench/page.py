"""Results as a page of HTML that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from quire.bench.outcomes import Result
from quire.charts import Chart, Line, page

_CDFS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token, after the first",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}


def write_page(results: Sequence[Result], path: Path) -> None:
    """Figures in a table and, of servers, distributions and load over time; two results beside each other."""
    title = f"quire bench {results[0]['benchmark']}"
    table = _table(results)
    path.write_text(
        page(title, list(_charts(results)), f"<h1>{html.escape(title)}</h1>\n{table}"), encoding="utf-8"
    )


def _names(results: Sequence[Result]) -> list[str]:
    return ["A", "B"] if len(results) == 2 else [""]


def _charts(results: Sequence[Result]) -> Iterator[Chart]:
    names = _names(results)
    for metric, title in _CDFS.items():
        lines = [
            Line(name, [max(x, 1e-3) for x, _ in points], [100 * y for _, y in points])
            for name, result in zip(names, results, strict=True)
            if (points := result.get("cdf", {}).get(metric))
        ]
        if lines:
            yield Chart(f"{title}: % of values at or below", "milliseconds", lines, log_x=True)
    for key, title in (("output_tokens", "Output tokens a second"), ("running", "Requests under way")):
        lines = []
        for name, result in zip(names, results, strict=True):
            timeline = result.get("timeline") or {}
            if timeline:
                times = [(i + 0.5) * timeline["bin_seconds"] for i in range(len(timeline[key]))]
                lines.append(Line(name, times, timeline[key]))
        if lines:
            yield Chart(title, "seconds", lines)
    if all("latencies" in result for result in results):
        lines = [
            Line(name, list(range(1, len(result["latencies"]) + 1)), result["latencies"])
            for name, result in zip(names, results, strict=True)
        ]
        yield Chart("Latency of each round, in seconds", "round", lines)


def _table(results: Sequence[Result]) -> str:
    """The figures that are numbers or words; two results with their ratio."""
    rows = []
    two = len(results) == 2
    keys = list(dict.fromkeys(key for result in results for key in result))
    for key in keys:
        values = [result.get(key) for result in results]
        if any(isinstance(value, (list, dict)) for value in values) or all(value is None for value in values):
            continue
        cells = [key, *(_shown(value) for value in values)]
        if two:
            cells.append(ratio_text(*values))
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "<tr><th></th><th>A</th><th>B</th><th>B / A</th></tr>\n" if two else ""
    warnings = [text for result in results for text in result.get("warnings", ())]
    notes = "".join(f"<p>warning: {html.escape(text)}</p>\n" for text in warnings)
    return f"{notes}<table>\n{head}" + "\n".join(rows) + "\n</table>"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def ratio_text(before: object, after: object) -> str:
    """after / before, where both are numbers and that can be said."""
    for value in (before, after):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return ""
    assert isinstance(before, (int, float)) and isinstance(after, (int, float))
    return f"{after / before:.3f}" if before else ""
