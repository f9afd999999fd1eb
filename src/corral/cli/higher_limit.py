"""Find the flag that doubles a limit. The message about a reached limit suggests this flag."""

from __future__ import annotations

from corral.policy.model import LIMIT_KINDS, format_limit
from corral.policy.schema import KEYS
from corral.units import MAX_AMOUNT, parse_duration, parse_size


def find_higher_limit(name: str, asked: str) -> str:
    """Return the flag of `run` that sets twice this limit, such as `--max-memory 256M` for 128M.

    Return "" if no flag sets this limit, or if the doubled limit would be above its maximum.
    """
    [key] = [key for key in KEYS if key.path == f"limits.{name}"]
    doubled = 2 * parse_limit(name, asked)
    return (
        f"{key.flag} {format_limit(name, doubled)}" if key.flag and doubled <= key.maximum else ""
    )


def parse_limit(name: str, text: str) -> int:
    match LIMIT_KINDS[name]:
        case "size":
            return parse_size(text) or MAX_AMOUNT
        case "duration":
            return parse_duration(text) or MAX_AMOUNT
        case _:
            return int(text)
