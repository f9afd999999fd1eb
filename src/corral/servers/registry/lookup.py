"""A server of an MCP registry: `org.example/name@version` -> its package, as server.json says.

The registry is the user's choice (`CORRAL_REGISTRY`), the official one by default. Its answer is
kept, so that later runs ask nobody, also where no version was given. What server.json says is the
publisher's word: variables that it wants are a request, and what a person has to fill in comes from
`--config`.
"""

from __future__ import annotations

import json
import os

from corral.errors import SandboxError
from corral.policy.approvals import Request, is_approved, request_from
from corral.policy.model import Source
from corral.record import replace
from corral.safe_text import shown
from corral.servers import open_reference
from corral.servers.bundles import bundle
from corral.servers.reference import is_version, npm, pypi
from corral.servers.registry import download, server_json
from corral.servers.store import locks, store
from corral.servers.store.tree import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.servers.open_reference import Choices, Opened
    from corral.servers.reference import Reference
    from corral.servers.registry.server_json import Package
    from corral.servers.store.store import Entry

OFFICIAL = "https://registry.modelcontextprotocol.io"
VERSIONS = ("v0.1", "v0")
LARGEST_ANSWER = 1 << 20
LARGEST_BUNDLE = 1 << 30
FILE = "server.json"


def open_server(reference: Reference, arguments: Sequence[str], choices: Choices) -> Opened:
    content = answer_for(reference, choices)
    package = server_json.choose(parse(content, reference), reference.name)
    given = server_json.given(choices.config)
    words, paths = server_json.arguments(package, given, complete=choices.complete)
    if package.kind == "mcpb":
        entry = fetched(package, reference)
        return open_reference.open_entry(
            entry, package.sha256, reference.text, [*words, *arguments], choices
        )
    if package.runtime:
        choices.tell(f"warning: {reference.name}: its runtimeArguments are not used")
    mark, reader = {"npm": ("@", npm), "pypi": ("==", pypi)}[package.kind]
    name = f"{package.identifier}{mark}{package.version}"
    inner = reader(f"{package.kind}:{name}", name)
    found = open_reference.open_reference(inner, [*words, *arguments], choices)
    wishes = server_json.variables(package, given, choices.provided, complete=choices.complete)
    asked = replace(wishes.asked, origin=reference.text)
    manifest, digest = request_from(asked, content, ("server", reference.name))
    source = Source(manifest=manifest, trust="request", approved=is_approved(digest))
    granted = replace(wishes.granted, read=tuple(paths) or None)
    return replace(
        found,
        request=Request(source=source, digest=digest, subject=f"server {reference.name}"),
        granted=(*found.granted, Source(manifest=granted, trust="user", approved=True)),
        secrets=wishes.secrets,
    )


def base_url() -> str:
    return (os.environ.get("CORRAL_REGISTRY") or OFFICIAL).rstrip("/")


def answer_for(reference: Reference, choices: Choices) -> bytes:
    """From the store if this was asked before, else from the registry."""
    version = f"@{reference.version}" if reference.version else ""
    elsewhere = "" if base_url() == OFFICIAL else f" {base_url()}"
    key = f"mcp:{reference.name}{version}{elsewhere}"
    store.make()
    with locks.held(store.lock_path(key)):
        entry = store.find(key)
        if entry is None:
            content = ask(reference)
            entry = keep(key, reference, content)
            choices.tell(f"{reference.name} {entry.version} according to {base_url()}")
    with open(os.path.join(entry.path(), FILE), "rb") as file:
        return file.read()


def keep(key: str, reference: Reference, content: bytes) -> Entry:
    version = parse(content, reference).get("version")
    staging = store.staged(key)
    try:
        with open(os.path.join(staging, FILE), "wb") as file:
            file.write(content)
        values = {
            "key": key,
            "kind": "registry",
            "name": reference.name,
            "version": str(version),
            "origin": base_url(),
            "command": [],
        }
        return store.adopt(staging, values)
    finally:
        remove_tree(staging)


def ask(reference: Reference) -> bytes:
    from urllib.parse import quote

    name, version = quote(reference.name, safe=""), quote(reference.version or "latest", safe="")
    for api in VERSIONS:
        try:
            url = f"{base_url()}/{api}/servers/{name}/versions/{version}"
            return download.fetch_text(url, most=LARGEST_ANSWER)
        except download.Missing:
            continue
    raise SandboxError(
        f"{base_url()} has no {reference.name} {reference.version}".rstrip(),
        hint="CORRAL_REGISTRY names another registry",
    )


def parse(content: bytes, reference: Reference) -> dict[str, object]:
    try:
        answer: object = json.loads(content)
    except (ValueError, RecursionError):
        raise SandboxError(f"the registry's answer for {reference.name} is not JSON") from None
    data = answer.get("server", answer) if isinstance(answer, dict) else None
    if not isinstance(data, dict) or data.get("name") != reference.name:
        raise SandboxError(f"the registry answered with something else than {reference.name}")
    version = data.get("version")
    named = isinstance(version, str) and is_version(version)
    if not named or (reference.version and version != reference.version):
        raise SandboxError(f"the registry answered with another version: {shown(version)}")
    return data


def fetched(package: Package, reference: Reference) -> Entry:
    """The bundle, unpacked: fetched if it is not in the store, kept if it is what was promised."""
    known = store.find(f"bundle:{package.sha256}")
    if known is not None:
        return known
    key = f"download:{package.sha256}"
    store.make()
    with locks.held(store.lock_path(key)):
        staging = store.staged(key)
        try:
            path = os.path.join(staging, "archive")
            # Its publisher's word may not send us to what listens on this machine's loopback.
            download.check_url(package.identifier, after=base_url())
            digest = download.fetch_file(package.identifier, path, most=LARGEST_BUNDLE)
            if digest != package.sha256:
                raise SandboxError(
                    f"{shown(package.identifier, 200)} has the SHA-256 {digest}, and the registry"
                    f" promised {package.sha256}",
                    hint=f"it is not the file that {reference.name} published; do not run it",
                )
            return bundle.unpacked(path, digest, origin=package.identifier)
        finally:
            remove_tree(staging)
