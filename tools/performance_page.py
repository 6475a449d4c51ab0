"""Draws what the tables of docs/performance.md say.

    .venv/bin/python tools/performance_page.py

Writes docs/images/performance-*.svg, byte for byte the same from the same page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.charts import COLORS, Chart, Line, svg

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
CONTEXT = "1,024"
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_WIDTH, _LABELS, _ROW, _RIGHT = 720, 430, 18, 56


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    color: str
    length: float  # of the longest, 1


def tables(text: str) -> list[list[dict[str, str]]]:
    """Each table's rows by column, without links; a column without a name has its number."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [
            [LINK.sub(r"\1", cell).strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()
        ]
        names = [name or str(i) for i, name in enumerate(lines[0])]
        found.append([dict(zip(names, line, strict=True)) for line in lines[2:]])
    return found


def table(text: str, *columns: str) -> list[dict[str, str]]:
    """The one that begins with these columns; LookupError where there is none."""
    for rows in tables(text):
        if tuple(rows[0])[: len(columns)] == columns:
            return rows
    raise LookupError(f"{PAGE.name} has no table of {columns}")


def by_requests(text: str) -> Chart:
    """A step's time by the number of requests, of one context."""
    rows = [
        row for row in table(text, "requests, context") if row["requests, context"].endswith(f", {CONTEXT}")
    ]
    requests = [float(row["requests, context"].split(", ")[0]) for row in rows]
    lines = [
        Line(name, requests, [float(row[column]) for row in rows])
        for name, column in (("vLLM", "vLLM 0.26"), ("now", "now"), ("floor", "floor"))
    ]
    return Chart(f"Llama 3.1 8B, {CONTEXT} tokens: ms a step", "requests (logarithmic)", lines, log_x=True)


def changes(text: str) -> list[Bar]:
    """A bar for each row, as long as it is of the first one of its shape; those of one shape have a color."""
    bars: list[Bar] = []
    first, shapes = 1.0, 0
    for row in table(text, "shape, requests"):
        shape, what, ms = row["shape, requests"], row["1"], float(row["ms"])
        if shape:
            first, shapes = ms, shapes + 1
        color = COLORS[(shapes - 1) % len(COLORS)]
        bars.append(Bar(f"{shape}: {what}" if shape else what, ms, color, ms / first))
    return bars


def layer(text: str) -> list[Bar]:
    """For each kernel its time, and that of its bytes if it has any."""
    rows = table(text, "kernel")
    longest = max(float(row["microseconds"]) for row in rows)
    bars = []
    for row in rows:
        time, of_bytes = float(row["microseconds"]), float(row["of its bytes"])
        bars.append(Bar(row["kernel"], time, COLORS[0], time / longest))
        if of_bytes > 0:
            bars.append(Bar("its bytes", of_bytes, COLORS[1], of_bytes / longest))
    return bars


def bars_svg(title: str, bars: Sequence[Bar]) -> str:
    height = 36 + _ROW * len(bars)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" font-size="12" role="img">']
    parts.append(f'<text x="8" y="18" font-size="15">{html.escape(title)}</text>')
    for i, bar in enumerate(bars):
        y, width = 30 + _ROW * i, bar.length * (_WIDTH - _LABELS - _RIGHT)
        label = html.escape(bar.label)
        parts.append(f'<text x="{_LABELS - 8}" y="{y + 12}" text-anchor="end">{label}</text>')
        parts.append(f'<path d="M{_LABELS} {y}h{width:.1f}v14H{_LABELS}z" fill="{bar.color}"/>')
        parts.append(f'<text x="{_LABELS + width + 6:.1f}" y="{y + 12}">{bar.value:g}</text>')
    return "\n".join([*parts, "</svg>"])


def pictures(text: str) -> Mapping[str, str]:
    """Files of docs/images and what is in them, of the page's text."""
    drawn = {
        "performance-requests.svg": svg(by_requests(text)),
        "performance-changes.svg": bars_svg("Milliseconds a step", changes(text)),
        "performance-layer.svg": bars_svg("A layer of Qwen3-30B-A3B, one request: microseconds", layer(text)),
    }
    # By itself, and on white, whatever the page around it is.
    own = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff" font-family="sans-serif" '
    return {name: picture.replace("<svg ", own, 1) + "\n" for name, picture in drawn.items()}


def main() -> None:
    for name, picture in pictures(PAGE.read_text()).items():
        (IMAGES / name).write_text(picture)


if __name__ == "__main__":
    main()
