"""Draw demo.svg from a demo's JSON: `corral demo --json | python3 docs/pictures/draw_demo.py`."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from xml.sax.saxutils import escape

PICTURE = pathlib.Path(__file__).parent / "demo.svg"
COLUMNS = ((16, "a hostile server tries to"), (240, "behind corral"), (436, "without it"))
LABEL = "What a hostile server can do behind corral, and without it"
LINE, TOP, WIDTH = 24, 76, 640
MAX_LETTERS = 23
"""The maximum length of a result. Longer texts would leave the picture, or reach the next column.
The picture is narrow, because a browser scales it down to the width of a phone.
"""
CHANGING = r"\S*-[0-9a-f]{16}\S*|^\d{6,}$|(?<=sent to )\d+|\d+(?= processes)"
ERRNO = r"E[A-Z0-9]+"
STYLE = """
  text { font: 14px Arial, Helvetica, "Liberation Sans", Roboto, sans-serif; fill: #1f2328 }
  .head { font-weight: bold } .good { fill: #116329 } .bad { fill: #a40e26 }
  rect { fill: #f6f8fa; stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .good { fill: #56d364 } .bad { fill: #ff7b72 }
    rect { fill: #161b22; stroke: #30363d }
  }
"""


def rows(told: dict) -> list[tuple[str, str, str, bool]]:
    """Return the rows of the picture: each act of the demo, its results inside and outside of the
    sandbox, and whether the act is an attack.
    """
    return [
        (act["act"], _say(act["inside"]), _say(act["outside"]), act["wall"] is not None)
        for act in told["acts"]
    ]


def _say(result: dict) -> str:
    """Return what the picture says about a result, in one line.

    For a denied act, this is "denied", with the name of the errno if there is one. For a successful
    act, it is the start of the result's first line, or "done". "…" replaces the parts of the line
    that differ in each run.
    """
    if not result["done"]:
        cause = result["text"].partition(":")[0]
        return f"denied: {cause}" if re.fullmatch(ERRNO, cause) else "denied"
    text = re.sub(CHANGING, "…", result["text"].partition("\n")[0])
    if text == "…":
        return "done"
    return text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 1] + "…"


def draw(told: dict) -> str:
    height = TOP + LINE * len(told["acts"]) + 16
    box = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{LABEL}">',
        f"<style>{STYLE}</style>",
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
        f'<text x="{COLUMNS[0][0]}" y="32" class="head">$ corral demo</text>',
    ]
    lines += [f'<text x="{x}" y="58" class="head">{escape(name)}</text>' for x, name in COLUMNS]
    for number, (act, inside, outside, attack) in enumerate(rows(told)):
        kinds = ("", "good", "bad" if attack else "good")
        for (x, _), text, kind in zip(COLUMNS, (act, inside, outside), kinds, strict=True):
            y = TOP + LINE * number + 8
            lines.append(f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw(json.load(sys.stdin)), encoding="utf-8")
