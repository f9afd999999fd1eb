"""Parse TOML that a server's author may have written, in bounded time.

`tomllib` takes time that is quadratic in the number of parts of a dotted key. So a file of 1 MiB
could keep `tomllib` busy for hours.
"""

import tomllib

MAX_DOTS = 1000
MAX_STEPS = 20_000_000  # `tomllib` takes about a second for this many steps


def find_long_key(text: str) -> int:
    """Return the number of the first line that has more than MAX_DOTS dots, or at which `tomllib`
    would exceed MAX_STEPS steps. Return 0 if there is no such line.

    For each part of a dotted key, `tomllib` visits all parts before it, and the parts of the
    table's key.
    """
    lines = text.split("\n")
    deepest = max((line.count(".") for line in lines if line.lstrip()[:1] == "["), default=0)
    steps = 0
    for number, line in enumerate(lines, 1):
        dots = line.count(".")
        steps += (dots + 1) * (dots + deepest)  # a key without dots takes `deepest` steps
        if dots > MAX_DOTS or steps > MAX_STEPS:
            return number
    return 0


def parse_toml(text: str) -> dict[str, object]:
    """Return the data in TOML text. Raise ValueError if the text is not TOML, is nested too deeply,
    or has too many dots.
    """
    if number := find_long_key(text):
        raise ValueError(f"too many dots in line {number}, or in the lines before it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None
    except OverflowError as error:
        raise ValueError(str(error)) from None
