"""A simulation's report as pictures: HTML that needs nothing, or PNG through matplotlib."""

from __future__ import annotations

import html
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]

_COLORS = ("#1f6fb2", "#d1622b", "#3a8f4d")
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 36, 44


@dataclass(frozen=True)
class Line:
    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    lines: Sequence[Line]
    log_x: bool = False


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
        path.write_text(_page(charts(report)))
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


def _page(drawn: Sequence[Chart]) -> str:
    body = "\n".join(_svg(chart) for chart in drawn)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>quire simulate</title>\n'
        "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:46em}"
        f"svg{{display:block;margin:0 0 1.5em}}</style>\n<body>\n{body}\n</body></html>\n"
    )


def _svg(chart: Chart) -> str:
    xs = [x for line in chart.lines for x in line.xs]
    ys = [y for line in chart.lines for y in line.ys]
    x_ticks = _log_ticks(min(xs), max(xs)) if chart.log_x and xs else _ticks(max(xs, default=1.0))
    y_ticks = _ticks(max(ys, default=1.0))
    scale = math.log10 if chart.log_x else float
    low, high = scale(x_ticks[0]), scale(x_ticks[-1])

    def px(x: float) -> float:
        return _LEFT + (scale(x) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / y_ticks[-1] * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="12" role="img">']
    parts.append(f'<text x="{_LEFT}" y="18" font-size="15">{html.escape(chart.title)}</text>')
    for y in y_ticks:
        parts.append(f'<path d="M{_LEFT} {py(y):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in x_ticks:
        parts.append(f'<text x="{px(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{html.escape(chart.x_label)}</text>'
    )
    for i, (line, color) in enumerate(zip(chart.lines, _COLORS, strict=False)):
        path = "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y in zip(line.xs, line.ys, strict=True))
        if path:
            parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        x = _WIDTH - _RIGHT - 80 * (len(chart.lines) - i)
        parts.append(f'<text x="{x}" y="18" fill="{color}">{html.escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>"])


def _ticks(top: float) -> list[float]:
    """From 0 to at least ``top``, four to ten steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top))
    step = next(power * part for part in (0.1, 0.2, 0.5, 1.0) if top <= 10 * power * part)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def _log_ticks(bottom: float, top: float) -> list[float]:
    first, last = math.floor(math.log10(bottom)), math.ceil(math.log10(top))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _write_png(drawn: Sequence[Chart], path: Path) -> None:
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 3.2 * len(drawn)), layout="constrained")
    for chart, axes in zip(drawn, figure.subplots(len(drawn)), strict=True):
        for line, color in zip(chart.lines, _COLORS, strict=False):
            axes.plot(line.xs, line.ys, label=line.name, color=color)
        axes.set_title(chart.title, loc="left")
        axes.set_xlabel(chart.x_label)
        axes.set_ylim(bottom=0)
        if chart.log_x:
            axes.set_xscale("log")
        axes.legend()
    figure.savefig(path, dpi=120)
