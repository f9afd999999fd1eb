"""`corral profiles`: the curated policies, and why each line of them is there."""

from __future__ import annotations

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError
from corral.policy import profiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.policy.profiles import Profile

SUMMARY = "list the curated policies for known servers, or show one with its reasons"
USAGE = "usage: corral profiles [--json] [NAME]"
FLAGS = (Flag(name="--json", help="as JSON"),)
HEADINGS = ("[profile]", "[reasons]")


def main(options: Options, rest: list[str]) -> int:
    if len(rest) > 1:
        raise UsageError("profiles takes one name at most", hint=USAGE)
    found = [profiles.load(name) for name in rest or profiles.names()]
    if options.has("--json"):
        output.json([_data(profile) for profile in found])
    elif rest:
        for line in lines(found[0]):
            output.say(line)
    else:
        output.table([(one.name, one.title, " ".join(one.packages)) for one in found])
    return 0


def lines(profile: Profile) -> list[str]:
    """The profile as a policy, each grant with its reason."""
    told = [f"{profile.name}: {profile.title}", f"for {', '.join(profile.packages)}", ""]
    told += [f"  {key}: {reason}" for key, reason in profile.reasons]
    told += [] if profile.reasons else ["  asks for nothing beyond the defaults"]
    return [*told, *(["", profile.note] if profile.note else []), "", *_policy(profile)]


def _policy(profile: Profile) -> list[str]:
    """The file without what is said about it: it can be saved as a policy and changed."""
    with open(profiles.path(profile.name), encoding="utf-8") as file:
        tables = file.read().strip().split("\n\n")
    return "\n\n".join(table for table in tables if not table.startswith(HEADINGS)).split("\n")


def _data(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.name,
        "title": profile.title,
        "packages": list(profile.packages),
        "arguments": profile.arguments,
        "note": profile.note,
        "reasons": dict(profile.reasons),
        "policy": "\n".join(_policy(profile)),
    }
