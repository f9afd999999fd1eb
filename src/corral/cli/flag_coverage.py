"""Decide whether a server's flags already allow what a denial suggests.

A denial suggests the narrowest flag, such as `--read` for a single file. Users often grant more,
such as the directory that contains this file.
"""

import os
from collections.abc import Sequence

from corral.cli import entry_flags, run_flags
from corral.cli.higher_limit import parse_limit
from corral.network.addresses import address_or_none
from corral.network.rules import parse_entry, parse_rules

LIMITS = {
    flag.name: flag.key.removeprefix("limits.")
    for flag in run_flags.FLAGS
    if flag.key.startswith("limits.")
}
ALSO_ALLOWED_BY = {"--read": ("--read", "--write"), "--env": ("--env", "--secret")}


def is_covered(flag: str, value: str, has: Sequence[tuple[str, str]], *, any_port: bool) -> bool:
    """Return whether the flags in `has`, which are (flag, value) pairs, allow everything that
    `flag` with `value` allows.

    With `any_port`, a host counts as allowed if any of its ports is allowed. Denials of names need
    this, because a lookup of a name has no port.
    """
    flags = ALSO_ALLOWED_BY.get(flag, (flag,))
    given = [theirs for name, theirs in has if name in flags]
    if flag in entry_flags.PATH_FLAGS:
        return any(_contains(theirs, value) for theirs in given)
    if flag == "--allow-net":
        return value in given or _allows_host(given, value, any_port=any_port)
    if flag in LIMITS:
        return any(_is_as_high(LIMITS[flag], theirs, value) for theirs in given)
    if flag in ALSO_ALLOWED_BY:
        return value.partition("=")[0] in {theirs.partition("=")[0] for theirs in given}
    return value in given


def _contains(outer: str, inner: str) -> bool:
    top, path = (entry_flags.make_absolute_value("--read", value) for value in (outer, inner))
    return path == top or path.startswith(os.path.join(top, ""))


def _allows_host(entries: Sequence[str], wanted: str, *, any_port: bool) -> bool:
    try:
        rules, entry = parse_rules(entries), parse_entry(wanted)
    except ValueError:
        return False  # a value of --allow-net that contains a client's variable cannot be parsed
    if any_port and rules.matches(entry.host):
        return True
    ports = [port for low, high in entry.ports for port in range(low, high + 1)]
    address = address_or_none(entry.host)
    if address is None:
        return all(rules.allows_name(entry.host, port) for port in ports)
    return all(rules.allows_address(address, port) for port in ports)


def _is_as_high(limit: str, given: str, wanted: str) -> bool:
    try:
        return parse_limit(limit, given) >= parse_limit(limit, wanted)
    except ValueError:
        return given == wanted
