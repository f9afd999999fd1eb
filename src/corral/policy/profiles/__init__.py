"""Curated policies: one data file a server, each line of it with its reason.

A profile counts as the user's decision, because the user names it. It grants what the server cannot
do without, and never a path: only the user knows those. With `arguments`, a path in the server's
arguments is granted, because such servers work on these paths. Secrets count if they are set.
"""

import os
from collections.abc import Mapping, Sequence

from corral.errors import PolicyError
from corral.policy.manifest import Manifest, decode_toml, from_data
from corral.policy.model import Source
from corral.record import record, replace

SUFFIX = ".toml"


@record
class Profile:
    """`packages` are the references that it fits, `reasons` are by key, `note` is what the user has
    to do. `beside` are requirements that a package on PyPI has and does not state. `below` are
    directories in a path of the arguments that a grant of that path does not include.
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
        raise PolicyError(f"there is no profile {name!r}", hint=hint)
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
    """Return the first profile for a package, named as `npm:@scope/name` or `pypi:name`."""
    profiles = map(load, names())
    return next((profile for profile in profiles if package in profile.packages), None)


def source(profile: Profile, arguments: Sequence[str], environment: Mapping[str, str]) -> Source:
    """Return what the profile grants to this run."""
    manifest = profile.manifest
    if manifest.secret_names:
        present = tuple(name for name in manifest.secret_names if name in environment)
        manifest = replace(manifest, secret_names=present)
    if profile.arguments:
        given = paths(arguments)
        inner = [os.path.join(path, name) for path in given for name in profile.below]
        inner = [path for path in inner if _is_own_directory(os.path.expanduser(path))]
        manifest = replace(manifest, **{profile.arguments: (*given, *inner)})
    return Source(manifest=manifest, trust="user", approved=True)


def paths(arguments: Sequence[str]) -> list[str]:
    """Return the words, or values of options, that are written as a path and exist.

    A word without a slash that happens to be a directory's name is not taken for a path.
    """
    written = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    return [word for word in written if _is_path(word) and os.path.exists(os.path.expanduser(word))]


def _is_path(word: str) -> bool:
    return os.sep in word or (os.altsep or os.sep) in word or word in {".", "..", "~"}


def _is_own_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
