"""Write accepted proposals as a policy file, with the reason for every line."""

import json
from collections.abc import Sequence

from corral.learn.proposals import Proposal
from corral.policy.manifest import Manifest
from corral.policy.profiles import load
from corral.safe_text import printable

KEYS = {
    "--read": ("filesystem", "read"),
    "--write": ("filesystem", "write"),
    "--allow-net": ("network", "allow"),
    "--env": ("environment", "pass"),
}
SWITCHES = {
    "--own-unix-sockets": ("filesystem", "own_unix_sockets"),
    "--allow-subprocess": ("subprocess", "allow"),
}


def policy_text(accepted: Sequence[Proposal]) -> str:
    lines = ["version = 1"]
    manifests = [load(one.path).manifest for one in accepted if one.flag == "--profile"]
    for table in dict.fromkeys(table for table, _ in (*KEYS.values(), *SWITCHES.values())):
        found = [one for one in accepted if KEYS.get(one.flag, ("",))[0] == table]
        more = _from_profiles(table, manifests)
        switches = {SWITCHES[one.flag]: one for one in accepted if one.flag in SWITCHES}
        more += [
            f"{key} = true  # {printable(one.why)}"
            for (place, key), one in switches.items()
            if place == table
        ]
        if found or more:
            lines += ["", f"[{table}]", *more]
        for key in dict.fromkeys(KEYS[one.flag][1] for one in found):
            lines.append(f"{key} = [")
            for one in found:
                if KEYS[one.flag][1] == key:
                    lines.append(f"  {_quote(one.path)},  # {printable(one.why)}")
            lines.append("]")
    for one in [one for one in accepted if one.flag == "--max-memory"][:1]:
        lines += ["", "[limits]", f"memory = {_quote(one.path)}  # {printable(one.why)}"]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """Return a TOML string. Unlike JSON, TOML has no surrogate pairs, and DEL must be escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _from_profiles(table: str, manifests: Sequence[Manifest]) -> list[str]:
    """Return the lines that profiles add to a table. They keep the server's home, and set variables
    with which the server writes there.
    """
    lines = []
    for one in manifests:
        if table == "filesystem" and one.state:
            lines.append("state = true  # it keeps files")
        if table == "environment" and one.set_values:
            pairs = ", ".join(f"{name} = {_quote(value)}" for name, value in one.set_values)
            lines.append(f"set = {{ {pairs} }}  # where it keeps them")
    return lines
