"""Charts that need nothing: SVG in a page of HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

COLORS = ("#1f6fb2", "#d1622b", "#3a8f4d")
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


def page(title: str, drawn: Sequence[Chart], head: str = "") -> str:
    """A whole page: ``head`` (HTML), and below it the charts."""
    body = "\n".join([*([head] if head else []), *(svg(chart) for chart in drawn)])
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:46em}"
        "svg{display:block;margin:0 0 1.5em}table{border-collapse:collapse;margin:0 0 1.5em}"
        "td,th{padding:.1em .8em;text-align:right}td:first-child,th:first-child{text-align:left}</style>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def svg(chart: Chart) -> str:
    """One chart, to stand in HTML."""
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
    for i, (line, color) in enumerate(zip(chart.lines, COLORS, strict=False)):
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
