"""Format and parse the UTC time of `--learn-until`, a flag that `corral wrap --learn` writes."""

import calendar
import time

from corral.cli.option_parser import UsageError
from corral.units import parse_duration

FORM = "%Y-%m-%dT%H:%M:%SZ"


def format_end(duration: str) -> str:
    """Return the UTC time at the end of a duration that starts now. Refuse the duration "none"."""
    try:
        milliseconds = parse_duration(duration)
    except ValueError as error:
        raise UsageError(
            f"--learn: {duration!r} {error}", hint="give a duration such as 30m or 2h"
        ) from error
    if milliseconds is None:
        raise UsageError("--learn cannot last forever", hint="give a duration such as 30m or 2h")
    return time.strftime(FORM, time.gmtime(time.time() + milliseconds / 1000))


def is_over(text: str) -> bool:
    try:
        return time.time() >= calendar.timegm(time.strptime(text, FORM))
    except ValueError as error:
        raise UsageError(
            f"--learn-until: {text!r} is not a time",
            hint="write a time such as 2030-01-31T12:00:00Z",
        ) from error
