"""Convert sizes, durations and CPU shares from text to bytes, milliseconds and millicores, and
back.

A text consists of ASCII digits with at most one point, followed by one unit. Only sizes and CPU
shares may have no unit, and may be numbers instead of text. `"none"` becomes None. Anything else
raises ValueError. The text of the error completes a sentence that begins with the value, such as
"is too large" or "is negative".
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_AMOUNT = (1 << 63) - 1
# A million cores is more than any machine has, and small enough for quota arithmetic not to
# overflow.
MAX_CPU = 10**9
MAX_DIGITS = 40
MIN_BARE_MILLICORES = 10
DIGITS = "0123456789"

SIZES: Mapping[str, int] = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
DURATIONS: Mapping[str, int] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def is_digits(text: str) -> bool:
    """Return whether all characters are ASCII digits. `str.isdigit` also accepts digits from other
    scripts.
    """
    return text.isascii() and text.isdigit()


def split_number(text: str) -> tuple[str, str]:
    end = 0
    while end < len(text) and (text[end] in DIGITS or text[end] == "."):
        end += 1
    return text[:end], text[end:]


def scale(number: str, factor: int) -> int | None:
    """Return `number` times `factor`, rounded down, or None if `number` is not a plain decimal."""
    whole, point, part = number.partition(".")
    if not is_digits(whole) or (point and not is_digits(part)) or len(number) > MAX_DIGITS:
        return None
    return int(whole + part) * factor // int(10 ** len(part))


def check_range(value: int, maximum: int, minimum: str) -> int:
    if value < 0:
        raise ValueError("is negative")
    if value == 0:
        raise ValueError(f"is less than {minimum}")
    if value > maximum:
        raise ValueError("is too large")
    return value


def parse_size(value: object) -> int | None:
    """Convert `64M`, `1.5G`, `1GiB` or a number of bytes to bytes. K, M, G and T are powers of
    1024. Refuse KB, MB, GB and TB, which are ambiguous.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return check_range(value, MAX_AMOUNT, "one byte")
    if value == "none":
        return None
    number, unit = split_number(value) if isinstance(value, str) else ("", "")
    if unit.lower() in {"kb", "mb", "gb", "tb"}:
        raise ValueError(f"could mean two sizes: write {number}{unit[0].upper()}")
    factor = SIZES.get(unit.lower()) if unit.isascii() else None
    amount = scale(number, factor) if factor is not None else None
    if amount is None:
        raise ValueError("is not a size: write 64M, 1.5G or a number of bytes")
    return check_range(amount, MAX_AMOUNT, "one byte")


def parse_duration(value: object) -> int | None:
    """Convert a duration such as `500ms`, `60s`, `5m` or `1h` to milliseconds, and "none" to None.
    Refuse a number without a unit.
    """
    if isinstance(value, str):
        if value == "none":
            return None
        number, unit = split_number(value)
        factor = DURATIONS.get(unit)
        amount = scale(number, factor) if factor is not None else None
        if amount is not None:
            return check_range(amount, MAX_AMOUNT, "one millisecond")
    # Do not suggest "0s", because corral refuses it.
    bare = is_digits(str(value)) and int(value) > 0 if isinstance(value, (int, str)) else False
    advice = f"write {str(value)[:20]}s" if bare else 'write 500ms, 60s, 5m, 1h or "none"'
    raise ValueError(f"is not a duration: {advice}")


def parse_cpu(value: object) -> int | None:
    """Convert `"500m"` (millicores), or `0.5` or `"0.5"` (cores) to millicores."""
    if isinstance(value, float):
        # The condition is negated, because every comparison with NaN is false, and NaN must be
        # refused.
        if not -MAX_CPU <= value <= MAX_CPU:
            raise ValueError("is not a number of cores")
        if value < 0:
            raise ValueError("is negative")
        return check_range(round(value * 1000), MAX_CPU, "one millicore")
    if isinstance(value, int) and not isinstance(value, bool):
        return check_range(value * 1000, MAX_CPU, "one millicore")
    if value == "none":
        return None
    if isinstance(value, str):
        number, unit = split_number(value)
        factor = {"": 1000, "m": 1}.get(unit)
        amount = scale(number, factor) if factor is not None else None
        if amount is not None:
            return check_range(amount, MAX_CPU, "one millicore")
    raise ValueError('is not a share of CPU: write "500m" or 0.5')


def parse_cpu_flag(text: str) -> int | None:
    """Convert text as `parse_cpu` does, but take an integer without a unit as millicores. Refuse
    the integers 1 to 9 without a unit, because the user may mean cores.
    """
    if not is_digits(text):
        return parse_cpu(text)
    if 0 < int(text[:MAX_DIGITS]) < MIN_BARE_MILLICORES:
        raise ValueError(f"could mean cores or millicores: write {text}.0 or {text}m")
    return parse_cpu(f"{text}m")


def format_size(value: int | None) -> str:
    if value is None:
        return "none"
    for unit in ("T", "G", "M", "K"):
        if value and value % SIZES[unit.lower()] == 0:
            return f"{value // SIZES[unit.lower()]}{unit}"
    return str(value)


def format_duration(value: int | None) -> str:
    if value is None:
        return "none"
    for unit in ("h", "m", "s"):
        if value and value % DURATIONS[unit] == 0:
            return f"{value // DURATIONS[unit]}{unit}"
    return f"{value}ms"


def format_cpu(value: int | None) -> str:
    return "none" if value is None else f"{value}m"
