"""`corral profiles`: list the curated policies, or show one with the reason for each grant."""

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.policy import profiles
from corral.policy.profiles import Profile

SUMMARY = "list the curated policies for known servers, or show one with its reasons"
USAGE = "usage: corral profiles [--json] [NAME]"
FLAGS = (Flag(name="--json", help="as JSON"),)
HEADINGS = ("[profile]", "[reasons]")


def main(options: Options, rest: list[str]) -> int:
    if len(rest) > 1:
        raise UsageError("profiles takes at most one name", hint=USAGE)
    found = [profiles.load(name) for name in rest or profiles.names()]
    if options.has("--json"):
        output.write_json([_profile_to_json(profile) for profile in found])
    elif rest:
        output.write_lines(_format_profile(found[0]))
    else:
        rows = [(one.name, one.title, " ".join(one.packages)) for one in found]
        output.write_table(rows, header=("NAME", "ACCESS", "PACKAGES"))
    return 0


def _format_profile(profile: Profile) -> list[str]:
    lines = [f"{profile.name}: {profile.title}", f"for {', '.join(profile.packages)}", ""]
    lines += [f"  {key}: {reason}" for key, reason in profile.reasons]
    lines += [] if profile.reasons else ["  asks for nothing beyond the defaults"]
    return [*lines, *(["", profile.note] if profile.note else []), "", *_read_policy(profile)]


def _read_policy(profile: Profile) -> list[str]:
    """Return the lines of the profile's policy, without the tables that only describe the
    profile.
    """
    with open(profiles.path(profile.name), encoding="utf-8") as file:
        tables = file.read().strip().split("\n\n")
    return "\n\n".join(table for table in tables if not table.startswith(HEADINGS)).split("\n")


def _profile_to_json(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.name,
        "title": profile.title,
        "packages": list(profile.packages),
        "arguments": profile.arguments,
        "note": profile.note,
        "reasons": dict(profile.reasons),
        "policy": "\n".join(_read_policy(profile)),
    }
