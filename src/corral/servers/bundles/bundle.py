"""Open MCPB bundles (`.mcpb`, `.dxt`). A bundle is a zip archive with a manifest, and is unpacked
once.

Everything in a bundle was written by its author, so its command is checked by the same rules as the
command in the `corral.toml` of a server's directory. A bundle requests the permissions in
`_meta."io.corral"` of its manifest, and access to the paths that are the defaults of its settings.
The user has to approve these requests, and an approval is valid only for this exact bundle file.
Signatures are not verified, because the user approves the digest of the file.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from corral.abi.private_directory import make_private_directory
from corral.directories import home_directory
from corral.errors import SandboxError
from corral.policy.approvals import Request, is_approved, request_from
from corral.policy.model import Source
from corral.programs.needed_files import find_on_path
from corral.programs.runtimes import find_own_python
from corral.record import record, replace
from corral.safe_text import printable, shell_word, shown
from corral.servers.bundles import user_values
from corral.servers.bundles.archive import ArchiveError, Limits, extract_archive
from corral.servers.bundles.manifest import MAX_MANIFEST_BYTES, Bundle, parse_manifest
from corral.servers.bundles.policy import (
    build_request,
    find_warnings,
    grant_values,
    refuse_homes,
    variables,
)
from corral.servers.bundles.user_values import Values
from corral.servers.open_reference import Choices, ReadyServer
from corral.servers.server_directory import check_command, make_absolute
from corral.servers.store import store
from corral.servers.store.store import Entry

MANIFEST = "manifest.json"
CHUNK_BYTES = 1 << 20
RUNNERS = {"npx": "npm", "uvx": "pypi", "bunx": "npm", "pipx": "pypi"}


@record
class StoredBundle:
    """A bundle in the store. `origin` is what the user typed, and `content` is the manifest as
    bytes.
    """

    origin: str
    digest: str
    content: bytes
    bundle: Bundle
    entry: Entry
    publisher: tuple[str, ...] = ()


def open_bundle(path: str, arguments: Sequence[str], choices: Choices) -> ReadyServer:
    digest = bundle_digest(path)
    return open_stored(store_bundle(path, digest), digest, path, arguments, choices)


def open_stored(
    entry: Entry,
    digest: str,
    origin: str,
    arguments: Sequence[str],
    choices: Choices,
    *,
    publisher: Sequence[str] = (),
) -> ReadyServer:
    """Open a bundle that is in the store. `origin` is what the user typed.

    If a server in a registry adds arguments to the bundle's command, `publisher` contains the
    server's name and these arguments. The bundle then needs a separate approval for them, because
    any server in a registry can name a bundle that the user has already approved.
    """
    with open(os.path.join(entry.path(), MANIFEST), "rb") as file:
        content = file.read(MAX_MANIFEST_BYTES + 1)
    bundle = parse_manifest(content, sys.platform)
    if bundle.platforms and sys.platform not in bundle.platforms:
        raise SandboxError(f"{bundle.name} is for {', '.join(map(shown, bundle.platforms))} only")
    values = user_values.collect(bundle, choices.config, user_values.read_stored(bundle.name))
    lacking = user_values.find_missing(bundle, values, choices.provided)
    if lacking and choices.complete:
        first = shell_word(lacking[0].key)
        raise SandboxError(
            f"{bundle.name} needs a value for " + ", ".join(shown(one.key) for one in lacking),
            hint=f"--config {first}=VALUE, or set it under [{bundle.name}] of {user_values.FILE} in"
            " corral's configuration directory",
        )
    if choices.complete:
        refuse_homes(bundle, values, user_values.known_paths(entry.path(), home_directory()))
    found = StoredBundle(
        origin=origin,
        digest=digest,
        content=content,
        bundle=bundle,
        entry=entry,
        publisher=tuple(publisher),
    )
    ready = _make_ready(found, values, arguments, choices)
    for text in find_warnings(bundle):
        choices.notify(f"warning: {text}")
    return ready


def _make_ready(
    found: StoredBundle, values: Values, arguments: Sequence[str], choices: Choices
) -> ReadyServer:
    bundle, tree = found.bundle, found.entry.path()
    known = user_values.known_paths(tree, home_directory())
    origin = printable(found.origin)
    # The approval covers all of the bundle's requests, even those that the user's values replace.
    complete, approval = request_from(
        build_request(bundle, user_values.defaults(bundle), known, origin=origin),
        found.content,
        ("bundle", found.digest, *found.publisher),
    )
    approved = is_approved(approval)
    asked = build_request(bundle, values, known, origin=origin)
    asks = tuple(f"get your value of {key} in {user_values.FILE}" for key in values.stored)
    if not (approved or choices.complete):
        # `corral inspect` starts a bundle without asking the user, so it must not give the bundle
        # values that the user has stored.
        values = user_values.collect(bundle, choices.config, {})
    command = [*_build_command(found, values, known), *arguments]
    check_command(command, tree, choices.granted)
    manifest = replace(asked, resolved=complete.resolved)
    source = Source(manifest=manifest, trust="request", approved=approved)
    environment, secret = variables(bundle, values, known)
    return ReadyServer(
        command=tuple(command),
        request=Request(source=source, digest=approval, subject=f"bundle {bundle.name}", asks=asks),
        granted=(grant_values(bundle, values, known),),
        secrets={name: environment[name] for name in secret},
    )


def bundle_digest(path: str) -> str:
    total = sha256()
    for chunk in _read_bundle(path):
        total.update(chunk)
    return total.hexdigest()


def _read_bundle(path: str) -> Iterator[bytes]:
    """Yield the content of a bundle. Check the file's type after opening it, and its size while
    reading it, because another process may replace the file or append to it at any time.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    left = Limits().max_packed_bytes
    try:
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SandboxError(f"{printable(path)} is not a file")
            while chunk := file.read(CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise SandboxError(f"{printable(path)} is larger than a bundle may be")
                yield chunk
    except OSError as error:
        raise SandboxError(f"{printable(path)} cannot be read: {error.strerror}") from error


def store_bundle(path: str, digest: str, *, origin: str = "") -> Entry:
    """Return the bundle's entry in the store. If there is no usable entry, unpack the bundle first.
    `origin` is the path or URL of the bundle.
    """
    key = f"bundle:{digest}"
    with store.lock_key(key):
        found = store.find_usable(key)
        if found is not None:
            return found
        with store.StagingDirectory(key) as staging:
            return _unpack(path, digest, staging, origin=origin or os.path.abspath(path))


def _unpack(path: str, digest: str, staging: str, *, origin: str) -> Entry:
    """Copy the bundle file into the staging directory, and unpack the copy. Unlike the original,
    the copy cannot be changed by other processes after corral has checked its digest.
    """
    copy = os.path.join(staging, "archive")
    tree = os.path.join(staging, "tree")
    make_private_directory(tree)
    with open(copy, "xb") as target:
        target.writelines(_read_bundle(path))
    if bundle_digest(copy) != digest:
        raise SandboxError(f"{printable(path)} changed while corral was reading it")
    try:
        with open(copy, "rb") as file:
            extract_archive(file, tree)
    except ArchiveError as error:
        raise SandboxError(f"{printable(origin)}: {error.message}", hint=error.hint) from error
    if not os.path.isfile(os.path.join(tree, MANIFEST)):
        raise SandboxError(f"{printable(path)} has no {MANIFEST}: it is not a bundle")
    with open(os.path.join(tree, MANIFEST), "rb") as file:
        bundle = parse_manifest(file.read(MAX_MANIFEST_BYTES + 1), sys.platform)
    entry_point = os.path.join(tree, bundle.entry)
    if bundle.type == "binary" and os.path.isfile(entry_point):
        os.chmod(entry_point, 0o700)  # zip files from Windows lack executable bits
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
    return store.commit(tree, values)


def _build_command(found: StoredBundle, values: Values, known: Mapping[str, str]) -> list[str]:
    bundle, tree = found.bundle, known["__dirname"]
    if bundle.type == "uv":
        return [*found.entry.argv(), *_arguments_after_entry(bundle, values, known)]
    program = user_values.substitute(bundle.command, known, values)
    if program in RUNNERS:
        raise SandboxError(
            f"{bundle.name} fetches its program with {program} at each start",
            hint=f"run the package itself: corral run {RUNNERS[program]}:NAME",
        )
    words = user_values.expand(bundle.arguments, known, values)
    if not program:
        program = {"node": "node", "python": "python3"}.get(bundle.type, "")
        words = [os.path.join(tree, bundle.entry), *words]
    if program in {"python", "python3"}:
        # Many systems have no program `python`, so `python3` is used for both names. Some clients
        # start servers with a PATH that lacks `python3`; corral's own Python is used then.
        program = "python3" if find_on_path("python3") else find_own_python()
    return make_absolute([program, *words], tree)


def _arguments_after_entry(bundle: Bundle, values: Values, known: Mapping[str, str]) -> list[str]:
    """Return the arguments that follow the entry point: `--flag` in `uv run ... src/server.py
    --flag`.
    """
    words = user_values.expand(bundle.arguments, known, values)
    names = [at for at, word in enumerate(words) if word.endswith(os.path.basename(bundle.entry))]
    return words[names[0] + 1 :] if names else []
