"""Refuse grants of a whole home directory or of /etc, and suggest smaller ones.

No list of the secrets in a home directory is complete, so hiding the known secrets is not enough.
"""

from __future__ import annotations

import os
import sys

from corral.directories import recorded_home
from corral.policy.path_grants import Refused, contains, file_identity
from corral.policy.secret_files import ETC_SECRETS, is_near_secrets, protected
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.paths.mounts import Mounts
    from corral.policy.secret_files import Column

ETC = "/private/etc" if sys.platform == "darwin" else "/etc"
ABOVE_HOMES = ("/home", "/Users")
ETC_EXAMPLES = ("ssl/certs", "pki/tls/certs", "ssl/cert.pem")
MAX_SUGGESTED = 10
SYSTEM: Column = (
    "macos" if sys.platform == "darwin" else "windows" if sys.platform == "win32" else "linux"
)


def find_homes(home: str) -> tuple[str, ...]:
    """Return the real paths of `home` and of the home in the user database, except "/".

    `home` alone is not enough, because the caller can set HOME to anything.
    """
    found = dict.fromkeys(
        os.path.realpath(path) for path in (home, recorded_home()) if os.path.isabs(path)
    )
    return tuple(path for path in found if os.path.dirname(path) != path)


def refuse_home(
    path: str,
    home: str,
    mounts: Mounts,
    flag: str = "--read {}",
    is_granted: Callable[[str], bool] = os.path.isdir,
) -> None:
    """Refuse `path`, in which all links are resolved, if it is or contains a home directory, /etc,
    or a secret file or directory in /etc. Also refuse a path inside such a directory.

    For a home directory, the hint suggests smaller directories to grant with `flag`. It names only
    directories for which `is_granted` returns true.
    """
    homes = find_homes(home)
    for own in (*homes, *ABOVE_HOMES):
        if not contains(path, own, mounts):
            continue
        same = own in homes and file_identity(path) == file_identity(own)
        near = own if own in homes else home
        found = [one for one in _ordinary_directories(near) if is_granted(one)][:MAX_SUGGESTED]
        flags = " ".join(flag.format(_quote(one, home)) for one in found)
        raise Refused(
            f"{shown(path, 200)} {'is' if same else 'contains'} a home directory, which is never"
            " granted as a whole: no list of the secrets in it is complete",
            f"grant what is needed: {flags}"
            if flags
            else "make a directory for the server, and grant it",
        )
    if sys.platform != "win32":
        _refuse_etc(path, mounts, flag)


def is_home(path: str, home: str) -> bool:
    """Return whether a path is a home directory or contains one."""
    return any(contains(os.path.realpath(path), own, {}) for own in find_homes(home))


def _refuse_etc(path: str, mounts: Mounts, flag: str) -> None:
    if contains(path, ETC, mounts):
        examples = [f"{ETC}/{name}" for name in ETC_EXAMPLES]
        flags = [flag.format(one) for one in examples if os.path.exists(one)][:1]
        raise Refused(
            f"{shown(path, 200)} contains the system's passwords and keys, and is never granted"
            " as a whole",
            " ".join(["grant the files that are needed, for example:", *flags]) if flags else "",
        )
    if not contains(ETC, path, mounts):
        return
    for name in ETC_SECRETS:
        secret = f"{ETC}/{name}"
        if contains(secret, path, mounts):
            raise Refused(
                f"{shown(path, 200)} contains the system's passwords or keys ({secret})",
                "copy the needed files into a directory that you own, and grant that",
            )
        if os.path.lexists(secret) and contains(path, secret, mounts):
            raise Refused(
                f"{shown(path, 200)} contains {secret}, which holds the system's passwords or keys",
                "grant only the files that the server needs",
            )


def _ordinary_directories(home: str) -> Sequence[str]:
    """Return the directories in a home directory that can be suggested: not hidden, and without
    known secrets or files that run at login.
    """
    started = {name.partition("/")[0] for name in protected(SYSTEM)}
    try:
        with os.scandir(home) as entries:
            names = sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return ()
    return [
        os.path.join(home, name)
        for name in names
        if not name.startswith(".")
        and name not in started
        and not is_near_secrets(name, SYSTEM)
        and name.isprintable()
        and os.access(os.path.join(home, name), os.R_OK | os.X_OK)
    ]


def _quote(path: str, home: str) -> str:
    """Quote a path for a shell. Write a path in `home` as `~/...` if it needs no quotes. Inside
    quotes a shell would not expand `~`.
    """
    from shlex import quote

    if sys.platform == "win32":
        return f'"{path}"'
    rest = os.path.relpath(path, home)
    if not rest.startswith("..") and quote(rest) == rest:
        return f"~/{rest}"
    return quote(path)
