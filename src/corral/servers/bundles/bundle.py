"""An MCPB bundle (`.mcpb`, `.dxt`): a zip with a manifest, unpacked once, known by its digest.

Everything in it is the server's word. Its command is checked like a directory's; what it asks for
(`_meta."io.corral"`, defaults that name files) waits for the user's approval of exactly this file.
Signatures are not looked at: the digest is what is approved.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import home_directory
from corral.errors import SandboxError
from corral.policy.approvals import Request, is_approved, request_from
from corral.policy.model import Source
from corral.record import record, replace
from corral.safe_text import printable, shown
from corral.servers import directory
from corral.servers.bundles import manifest as bundle_manifest
from corral.servers.bundles import user_values
from corral.servers.bundles.archive import Bounds, extract
from corral.servers.bundles.policy import asked_for, granted, variables, warnings
from corral.servers.packages.package import usable
from corral.servers.store import locks, store
from corral.servers.store.tree import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.servers.bundles.manifest import Bundle
    from corral.servers.bundles.user_values import Values
    from corral.servers.store.store import Entry

MANIFEST = "manifest.json"
CHUNK = 1 << 20
LAUNCHERS = {"npx": "npm", "uvx": "pypi", "bunx": "npm", "pipx": "pypi"}


@record
class Found:
    """A bundle that is in the store; `content` is its manifest's."""

    path: str
    digest: str
    content: bytes
    bundle: Bundle
    entry: Entry


@record
class Start:
    """A bundle made ready: its command, what it asks for, what the user's values grant."""

    command: tuple[str, ...]
    request: Request
    granted: Source
    secrets: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def open_unpacked(
    entry: Entry,
    digest: str,
    origin: str,
    arguments: Sequence[str],
    *,
    config: Sequence[str] = (),
    provided: Sequence[str] = (),
    complete: bool = True,
) -> Start:
    """`origin` is how the user calls it; `provided` are variables that the user passes himself.

    Not `complete`: only to look at what it asks for, so settings may still lack a value.
    """
    with open(os.path.join(entry.path(), MANIFEST), "rb") as file:
        content = file.read(bundle_manifest.LARGEST + 1)
    bundle = bundle_manifest.parse(content, sys.platform)
    if bundle.platforms and sys.platform not in bundle.platforms:
        raise SandboxError(f"{bundle.name} is for {', '.join(map(shown, bundle.platforms))} only")
    values = user_values.collect(bundle, config, user_values.read_kept(bundle.name))
    lacking = user_values.missing(bundle, values, provided)
    if lacking and complete:
        first = lacking[0].key
        raise SandboxError(
            f"{bundle.name} needs a value for " + ", ".join(shown(one.key) for one in lacking),
            hint=f"--config {first}=VALUE, or [{bundle.name}] in {user_values.FILE} of corral's"
            " configuration",
        )
    found = Found(path=origin, digest=digest, content=content, bundle=bundle, entry=entry)
    return ready(found, values, arguments)


def ready(found: Found, values: Values, arguments: Sequence[str]) -> Start:
    bundle, tree = found.bundle, found.entry.path()
    known = user_values.places(tree, home_directory())
    command = [*command_of(found, values, known), *arguments]
    directory.check(command, tree)
    origin = printable(found.path)
    # An approval is of everything that it asks for, also of what the user's values replace today.
    whole, approval = request_from(
        asked_for(bundle, user_values.defaults(bundle), known, origin=origin),
        found.content,
        ("bundle", found.digest),
    )
    asked = asked_for(bundle, values, known, origin=origin)
    manifest = replace(asked, resolved=whole.resolved)
    source = Source(manifest=manifest, trust="request", approved=is_approved(approval))
    environment, secret = variables(bundle, values, known)
    return Start(
        command=tuple(command),
        request=Request(
            source=source,
            digest=approval,
            subject=f"bundle {bundle.name}",
            asks=tuple(f"get your value of {key} in {user_values.FILE}" for key in values.kept),
        ),
        granted=granted(bundle, values, known),
        secrets={name: environment[name] for name in secret},
        warnings=tuple(warnings(bundle)),
    )


def digest_of(path: str) -> str:
    from hashlib import sha256

    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    total = sha256()
    try:
        with open(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SandboxError(f"{printable(path)} is not a file")
            if found.st_size > Bounds().packed:
                raise SandboxError(f"{printable(path)} is larger than any bundle")
            while chunk := file.read(CHUNK):
                total.update(chunk)
    except OSError as error:
        raise SandboxError(f"{printable(path)} cannot be read: {error.strerror}") from error
    return total.hexdigest()


def unpacked(path: str, digest: str, *, origin: str = "") -> Entry:
    """The bundle in the store, put there if need be; `origin` is where it came from."""
    key = f"bundle:{digest}"
    store.make()
    with locks.held(store.lock_path(key)):
        found = usable(key)
        if found is not None:
            return found
        staging = store.staged(key)
        try:
            return unpack(path, digest, staging, origin=origin or os.path.abspath(path))
        finally:
            remove_tree(staging)


def unpack(path: str, digest: str, staging: str, *, origin: str) -> Entry:
    """From a copy of our own: what is hashed is what is unpacked, whoever writes to the file."""
    import shutil

    copy = os.path.join(staging, "archive")
    tree = os.path.join(staging, "tree")
    os.mkdir(tree, 0o700)
    shutil.copyfile(path, copy)
    if digest_of(copy) != digest:
        raise SandboxError(f"{printable(path)} changed while it was read")
    with open(copy, "rb") as file:
        extract(file, tree)
    if not os.path.isfile(os.path.join(tree, MANIFEST)):
        raise SandboxError(f"{printable(path)} has no {MANIFEST}: it is no bundle")
    with open(os.path.join(tree, MANIFEST), "rb") as file:
        bundle = bundle_manifest.parse(file.read(bundle_manifest.LARGEST + 1), sys.platform)
    entry_point = os.path.join(tree, bundle.entry)
    if bundle.type == "binary" and os.path.isfile(entry_point):
        os.chmod(entry_point, 0o700)  # zips that Windows made have no executable bits
    values: dict[str, object] = {
        "key": f"bundle:{digest}",
        "kind": "bundle",
        "name": bundle.name,
        "version": bundle.version,
        "origin": origin,
        "integrity": f"sha256-{digest}",
        "command": [],
    }
    if bundle.type == "uv":
        from corral.servers.bundles.uv_dependencies import install

        return install(bundle, tree, values)
    return store.adopt(tree, values)


def command_of(found: Found, values: Values, known: Mapping[str, str]) -> list[str]:
    bundle, tree = found.bundle, known["__dirname"]
    if bundle.type == "uv":
        return [*found.entry.argv(), *after_entry(bundle, values, known)]
    program = user_values.substitute(bundle.command, known, values)
    if program in LAUNCHERS:
        raise SandboxError(
            f"{bundle.name} fetches its program at each start, with {program}",
            hint=f"run the package itself: corral run {LAUNCHERS[program]}:NAME",
        )
    words = user_values.expand(bundle.arguments, known, values)
    if not program:
        program, words = default_program(bundle), [os.path.join(tree, bundle.entry), *words]
    if program in {"python", "python3"}:
        program = python()
    return directory.absolute([program, *words], tree)


def default_program(bundle: Bundle) -> str:
    return {"node": "node", "python": "python3"}.get(bundle.type, "")


def python() -> str:
    """The caller's Python; many systems have no `python`, and some clients no PATH to speak of."""
    from corral.programs.needed_files import Caller
    from corral.servers.packages.pypi import interpreter

    caller = Caller(environment=os.environ, cwd="/", home="")
    return "python3" if caller.lookup("python3") else interpreter()


def after_entry(bundle: Bundle, values: Values, known: Mapping[str, str]) -> list[str]:
    """Arguments behind the entry point in `uv run ... src/server.py --flag`."""
    words = user_values.expand(bundle.arguments, known, values)
    names = [at for at, word in enumerate(words) if word.endswith(os.path.basename(bundle.entry))]
    return words[names[0] + 1 :] if names else []
