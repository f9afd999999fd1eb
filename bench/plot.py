"""Draw the start times of one run as an SVG. Each bar ends at the minimum, and a mark shows the
median.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from measure import Section, Stats, number

WIDTH, LABELS, VALUES, ROW, GAP = 860, 270, 130, 22, 34
COLOURS = {True: "#2b6cb0", False: "#a0aec0"}
"""The colours of corral's bars and of the other bars."""


def draw(sections: Iterable[Section]) -> str:
    """Return one drawing. Each section has its own scale, because it was measured in separate
    rounds.
    """
    parts: list[str] = []
    top = 0
    for section in sections:
        if section.rows:
            parts += _draw_section(section, top)
            top += GAP + ROW * len(section.rows) + ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}"'
        f' viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>'
    return "\n".join((head, background, *parts, "</svg>", ""))


def _draw_section(section: Section, top: int) -> list[str]:
    longest = max(row.median for row in section.rows)
    scale = (WIDTH - LABELS - VALUES) / longest
    parts = [_text(8, top + 22, f"{section.title} ({section.unit})", weight="bold")]
    for place, row in enumerate(section.rows):
        parts += _draw_row(row, top + GAP + place * ROW, scale)
    return parts


def _draw_row(row: Stats, y: int, scale: float) -> list[str]:
    least, middle = row.minimum * scale, row.median * scale
    mark = LABELS + middle - 1
    colour = COLOURS[row.name.startswith("corral")]
    cpu = "" if row.median_cpu is None else f", CPU {number(row.median_cpu)}"
    return [
        _text(LABELS - 8, y + 14, row.name, anchor="end"),
        f'<rect x="{LABELS}" y="{y + 3}" width="{least:.1f}" height="{ROW - 8}" fill="{colour}"/>',
        f'<rect x="{mark:.1f}" y="{y + 1}" width="2" height="{ROW - 4}" fill="#222222"/>',
        _text(
            LABELS + int(max(least, middle)) + 6,
            y + 14,
            f"{number(row.minimum)} / {number(row.median)}{cpu}",
        ),
    ]


def _text(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )
