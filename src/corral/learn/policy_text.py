"""Write accepted proposals as a policy file, with the reason for every line."""

from collections.abc import Mapping, Sequence

from corral.formats.toml import quote
from corral.learn.proposals import Proposal
from corral.policy.manifest import Manifest
from corral.policy.profiles import load
from corral.safe_text import printable

LISTS = {
    "--read": ("filesystem", "read"),
    "--write": ("filesystem", "write"),
    "--allow-net": ("network", "allow"),
    "--env": ("environment", "pass"),
}
SWITCHES = {
    "--own-unix-sockets": ("filesystem", "own_unix_sockets"),
    "--allow-subprocess": ("subprocess", "allow"),
}
TABLES = ("filesystem", "network", "environment", "subprocess", "limits")


def policy_text(accepted: Sequence[Proposal]) -> str:
    by_flag: dict[str, list[Proposal]] = {}
    for one in accepted:
        by_flag.setdefault(one.flag, []).append(one)
    tables: dict[str, list[str]] = {name: [] for name in TABLES}
    _add_profiles([load(one.path).manifest for one in by_flag.get("--profile", ())], tables)
    for flag, (table, key) in SWITCHES.items():
        if flag in by_flag:
            tables[table].append(f"{key} = true  # {printable(by_flag[flag][-1].why)}")
    for flag, found in by_flag.items():
        if flag in LISTS:
            table, key = LISTS[flag]
            items = [f"  {quote(one.path)},  # {printable(one.why)}" for one in found]
            tables[table] += [f"{key} = [", *items, "]"]
    for one in by_flag.get("--max-memory", ())[:1]:
        tables["limits"].append(f"memory = {quote(one.path)}  # {printable(one.why)}")
    lines = ["version = 1"]
    for table, content in tables.items():
        lines += ["", f"[{table}]", *content] if content else []
    return "\n".join(lines) + "\n"


def _add_profiles(profiles: Sequence[Manifest], tables: Mapping[str, list[str]]) -> None:
    """Add the profiles' settings to `tables`: whether the server's home is kept after a run, and
    variables that make the server write its files to this home.
    """
    if any(profile.state for profile in profiles):
        tables["filesystem"].append("state = true  # keep the server's files after a run")
    if values := dict(pair for profile in profiles for pair in profile.set_values or ()):
        pairs = ", ".join(f"{name} = {quote(value)}" for name, value in values.items())
        tables["environment"].append(f"set = {{ {pairs} }}  # where the server keeps its files")
