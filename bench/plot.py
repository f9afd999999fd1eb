"""Draw the start times of one run of `start.py` as an SVG. A bar for each contender ends at its
minimum, and a mark shows its median.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from measure import Section, Stats, number

WIDTH, ROW, GAP, EDGE = 720, 22, 34, 8
LETTER = 6.4
"""The average width of a letter. The space for labels and numbers is computed from it."""
STYLE = """
text { font-family: Arial, Helvetica, "Liberation Sans", Roboto, sans-serif; font-size: 13px }
text { fill: #1f2328 }
.back { fill: #ffffff } .corral { fill: #2b6cb0 } .other { fill: #a0aec0 } .median { fill: #222222 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .back { fill: #0d1117 } .corral { fill: #4493f8 } .other { fill: #656c76 }
  .median { fill: #e6edf3 }
}
"""


def draw(sections: Iterable[Section]) -> str:
    """Return one drawing of all sections. Each section has its own scale, because times of
    different rounds cannot be compared.
    """
    parts: list[str] = []
    top = 0
    sections = [section for section in sections if section.rows]
    rows = [row for section in sections for row in section.rows]
    labels = _widest(row.name for row in rows)
    bars = WIDTH - labels - _widest(map(_numbers, rows))
    for section in sections:
        parts += _draw_section(section, top, labels, bars)
        top += GAP + ROW * len(section.rows) + ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}"'
        f' viewBox="0 0 {WIDTH} {top}">\n<style>{STYLE}</style>'
    )
    background = f'<rect width="{WIDTH}" height="{top}" class="back"/>'
    return "\n".join((head, background, *parts, "</svg>", ""))


def _widest(texts: Iterable[str]) -> int:
    return int(max(map(len, texts), default=0) * LETTER) + 2 * EDGE


def _numbers(row: Stats) -> str:
    cpu = "" if row.median_cpu is None else f", CPU {number(row.median_cpu)}"
    return f"{number(row.minimum)} / {number(row.median)}{cpu}"


def _draw_section(section: Section, top: int, labels: int, bars: int) -> list[str]:
    scale = bars / max(row.median for row in section.rows)
    parts = [_text(EDGE, top + 22, f"{section.title} ({section.unit})", weight="bold")]
    for place, row in enumerate(section.rows):
        parts += _draw_row(row, labels, top + GAP + place * ROW, scale)
    return parts


def _draw_row(row: Stats, x: int, y: int, scale: float) -> list[str]:
    least, middle = row.minimum * scale, row.median * scale
    mark = x + middle - 1
    kind = "corral" if row.name.startswith("corral") else "other"
    return [
        _text(x - EDGE, y + 14, row.name, anchor="end"),
        f'<rect x="{x}" y="{y + 3}" width="{least:.1f}" height="{ROW - 8}" class="{kind}"/>',
        f'<rect x="{mark:.1f}" y="{y + 1}" width="2" height="{ROW - 4}" class="median"/>',
        _text(x + int(max(least, middle)) + 6, y + 14, _numbers(row)),
    ]


def _text(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )
