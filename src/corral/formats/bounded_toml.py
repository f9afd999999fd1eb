"""Parse TOML that a server's author may have written, in bounded time.

`tomllib` joins the parts of a dotted key one by one, in time that is quadratic in their number. So
a file of 1 MiB could keep `tomllib` busy for hours.
"""

import tomllib

MAX_DOTS = 1000


def find_long_key(text: str) -> int:
    """Return the number of the first line with more than MAX_DOTS dots, or 0 if there is none."""
    lines = enumerate(text.split("\n"), 1)
    return next((number for number, line in lines if line.count(".") > MAX_DOTS), 0)


def parse_toml(text: str) -> dict[str, object]:
    """Return the data in TOML text. Raise ValueError if the text is not TOML, is nested too deeply,
    or has too many dots in one line.
    """
    if number := find_long_key(text):
        raise ValueError(f"more than {MAX_DOTS} dots in line {number}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None
    except OverflowError as error:
        raise ValueError(str(error)) from None
