"""A simulation's report as pictures: HTML that needs nothing, or PNG through matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.charts import COLORS, Chart, Line, page

Report = Mapping[str, Any]


def check_plot_format(path: Path) -> None:
    """Raises ValueError for a file that ``plot`` could not write."""
    if path.suffix not in (".html", ".png"):
        raise ValueError(f"--plot {path}: the name must end in .html or .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"--plot {path}: PNG needs matplotlib (pip install matplotlib); .html needs nothing")


def plot(report: Report, path: Path) -> None:
    """Draws latencies and load over time. Raises ValueError as ``check_plot_format``."""
    check_plot_format(path)
    if path.suffix == ".html":
        path.write_text(page("quire simulate", charts(report)))
    else:
        _write_png(charts(report), path)


def charts(report: Report) -> list[Chart]:
    """Cumulative distributions of TTFT and ITL; requests and memory over time."""
    timeline = report["timeline"]
    times = [(i + 0.5) * timeline["bin_seconds"] for i in range(len(timeline["running"]))]
    latencies = [
        Line(name, [max(x, 1e-6) for x, _ in points], [100 * y for _, y in points])
        for name, points in (("TTFT", report["cdf"]["ttft"]), ("ITL", report["cdf"]["itl"]))
        if points
    ]
    return [
        Chart("Latency: % of values at or below", "seconds", latencies, log_x=True),
        Chart(
            "Requests in the fleet",
            "seconds",
            [Line("running", times, timeline["running"]), Line("waiting", times, timeline["waiting"])],
        ),
        Chart(
            "KV cache in use, %",
            "seconds",
            [Line("used", times, [100 * part for part in timeline["kv_utilization"]])],
        ),
    ]


def _write_png(drawn: Sequence[Chart], path: Path) -> None:
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 3.2 * len(drawn)), layout="constrained")
    for chart, axes in zip(drawn, figure.subplots(len(drawn)), strict=True):
        for line, color in zip(chart.lines, COLORS, strict=False):
            axes.plot(line.xs, line.ys, label=line.name, color=color)
        axes.set_title(chart.title, loc="left")
        axes.set_xlabel(chart.x_label)
        axes.set_ylim(bottom=0)
        if chart.log_x:
            axes.set_xscale("log")
        axes.legend()
    figure.savefig(path, dpi=120)
