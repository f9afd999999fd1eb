"""Provide the curated policies. Each is a data file for one server, with a reason for each key.

The user names a profile, so its grants count as the user's decision. A profile never names a path,
because paths differ between users. A profile with the key `arguments` grants the paths in the
server's arguments. A profile can also name environment variables for secrets. The server gets those
that the user has set.
"""

import os
from collections.abc import Mapping, Sequence

from corral.errors import EXIT_USAGE, PolicyError
from corral.policy.manifest import Manifest, decode_toml, from_data
from corral.policy.model import Source
from corral.record import record, replace

SUFFIX = ".toml"


@record
class Profile:
    """A curated policy for `packages`.

    `reasons` contains the reason for each key. `arguments` is the field of `manifest` to which the
    paths in the server's arguments are added, or "" if they are not granted. `below` lists names
    such as .git: if one of these paths contains such a directory, the directory gets a grant of its
    own, because a write grant around it leaves it read-only. `beside` lists packages that a PyPI
    package needs but does not declare. `note` tells the user what is left to do.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    manifest: Manifest
    reasons: tuple[tuple[str, str], ...] = ()
    arguments: str = ""
    beside: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    note: str = ""


def names() -> list[str]:
    with os.scandir(os.path.dirname(__file__)) as entries:
        found = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
    return sorted(name.removesuffix(SUFFIX) for name in found)


def load(name: str) -> Profile:
    known = names()
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "`corral profiles` lists them"
        unknown = PolicyError(f"there is no profile {name!r}", hint=hint)
        unknown.exit_code = EXIT_USAGE
        raise unknown
    with open(path(name), encoding="utf-8") as file:
        data, lines = decode_toml(file.read(), f"profile {name}")
    about, reasons = data.pop("profile"), data.pop("reasons", {})
    manifest = from_data(data, f"profile {name}", lines=lines)
    assert isinstance(about, dict) and isinstance(reasons, dict)  # noqa: S101, PT018 - our own file
    about.update({key: tuple(value) for key, value in about.items() if isinstance(value, list)})
    return Profile(name=name, manifest=manifest, reasons=tuple(reasons.items()), **about)


def path(name: str) -> str:
    return os.path.join(os.path.dirname(__file__), name + SUFFIX)


def fitting(package: str) -> Profile | None:
    """Return the first profile for a package such as `npm:@scope/name` or `pypi:name`, or None."""
    for name in names():
        with open(path(name), encoding="utf-8") as file:
            named = f'"{package}"' in file.read()  # much faster than parsing the file
        if named and package in (profile := load(name)).packages:
            return profile
    return None


def source(profile: Profile, arguments: Sequence[str], environment: Mapping[str, str]) -> Source:
    """Return the profile's grants for this run. Add the paths in `arguments` if the profile grants
    them, and leave out secrets that are not set in `environment`.
    """
    manifest = profile.manifest
    if manifest.secret_names:
        present = tuple(name for name in manifest.secret_names if name in environment)
        manifest = replace(manifest, secret_names=present)
    if profile.arguments:
        given = paths(arguments)
        inner = [os.path.join(path, name) for path in given for name in profile.below]
        inner = [path for path in inner if _is_own_directory(os.path.expanduser(path))]
        manifest = replace(manifest, **{profile.arguments: (*given, *inner)})
    return Source(manifest=manifest, trust="user")


def paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments and option values that are written as paths and exist.

    A word without a slash does not count as a path, even if a directory has that name.
    """
    return [word for word in _written_paths(arguments) if os.path.exists(os.path.expanduser(word))]


def missing_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments and option values that are written as absolute paths, but do not
    exist.
    """
    found = {word: os.path.expanduser(word) for word in _written_paths(arguments)}
    return [
        word for word, path in found.items() if os.path.isabs(path) and not os.path.exists(path)
    ]


def _written_paths(arguments: Sequence[str]) -> list[str]:
    written = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    return [word for word in written if _is_path(word)]


def _is_path(word: str) -> bool:
    return os.sep in word or (os.altsep or os.sep) in word or word in {".", "..", "~"}


def _is_own_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
