"""Look up a server's package in an MCP registry: `org.example/name@version`.

The default is the official registry, and the user can choose another one with `CORRAL_REGISTRY`.
The registry's answer is stored, and later runs use the stored answer, even if the user gave no
version. The answer is the server.json of the server's publisher, so the target gets the environment
variables in it only with the user's approval. The user gives values for the variables with
`--config`.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress

from corral.errors import SandboxError
from corral.policy.approvals import Request, is_approved, request_from
from corral.policy.model import Source
from corral.record import replace
from corral.safe_text import shown
from corral.servers.bundles import bundle
from corral.servers.bundles.manifest import refuse_surrogates
from corral.servers.bundles.user_values import parse_config
from corral.servers.open_reference import Choices, ReadyServer, open_reference
from corral.servers.reference import Reference, is_version, parse_package
from corral.servers.registry import download, server_json
from corral.servers.registry.server_json import Package
from corral.servers.store import store
from corral.servers.store.store import Entry

OFFICIAL = "https://registry.modelcontextprotocol.io"
API_VERSIONS = ("v0.1", "v0")
MAX_ANSWER_BYTES = 1 << 20
MAX_BUNDLE_BYTES = 1 << 30
FILE = "server.json"


def open_server(reference: Reference, arguments: Sequence[str], choices: Choices) -> ReadyServer:
    version = f"@{reference.version}" if reference.version else ""
    elsewhere = "" if base_url() == OFFICIAL else f" {base_url()}"
    key = f"mcp:{reference.name}{version}{elsewhere}"
    with store.lock_key(key):
        entry = store.find(key)
        if entry is None:
            entry = store_answer(key, reference, ask_registry(reference))
            choices.notify(f"{reference.name} {entry.version} according to {base_url()}")
    with open(os.path.join(entry.path(), FILE), "rb") as file:
        content = file.read()
    return open_answer(content, reference, arguments, choices)


def open_answer(
    content: bytes, reference: Reference, arguments: Sequence[str], choices: Choices
) -> ReadyServer:
    """Open the package named in a registry's answer."""
    package = server_json.choose_package(parse_answer(content, reference), reference.name)
    given = dict(parse_config(choices.config))
    words, paths = server_json.build_arguments(package, given, complete=choices.complete)
    if package.kind == "mcpb":
        # `published` contains the arguments without the user's values, because the approval must
        # stay valid if the user gives other values in the next run.
        published = json.dumps(package.arguments, sort_keys=True)
        return bundle.open_stored(
            fetch_bundle(package, reference),
            package.sha256,
            reference.text,
            [*words, *arguments],
            choices,
            publisher=(reference.name, published) if package.arguments else (),
        )
    words += arguments
    if package.has_runtime_arguments:
        choices.notify(f"warning: {reference.name}: its runtimeArguments are not used")
    inner = parse_package(package.kind, package.identifier, package.version)
    found = open_reference(inner, words, choices)
    variables = server_json.collect_variables(
        package, given, choices.provided, complete=choices.complete
    )
    asked = replace(variables.asked, origin=reference.text)
    manifest, digest = request_from(asked, content, ("server", reference.name))
    source = Source(manifest=manifest, trust="request", approved=is_approved(digest))
    granted = Source(
        manifest=replace(variables.granted, read=tuple(paths) or None),
        trust="user",
        given_values=server_json.find_given_secrets(given, variables),
    )
    return replace(
        found,
        request=Request(source=source, digest=digest, subject=f"server {reference.name}"),
        granted=(*found.granted, granted),
        secrets=variables.secrets,
    )


def base_url() -> str:
    return (os.environ.get("CORRAL_REGISTRY") or OFFICIAL).rstrip("/")


def store_answer(key: str, reference: Reference, content: bytes) -> Entry:
    version = parse_answer(content, reference).get("version")
    with store.StagingDirectory(key) as staging:
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
        return store.commit(staging, values)


def ask_registry(reference: Reference) -> bytes:
    from urllib.parse import quote

    name, version = quote(reference.name, safe=""), quote(reference.version or "latest", safe="")
    for api in API_VERSIONS:
        url = f"{base_url()}/{api}/servers/{name}/versions/{version}"
        with suppress(download.NotFoundError):
            return download.fetch_document(url, max_bytes=MAX_ANSWER_BYTES)
    raise SandboxError(
        f"{base_url()} has no {reference.name} {reference.version}".rstrip(),
        hint="CORRAL_REGISTRY=URL selects another registry",
    )


def parse_answer(content: bytes, reference: Reference) -> dict[str, object]:
    try:
        answer: object = json.loads(content)
        refuse_surrogates(answer)
    except (ValueError, RecursionError):
        raise SandboxError(f"the registry's answer for {reference.name} is not JSON") from None
    data = answer.get("server", answer) if isinstance(answer, dict) else None
    if not isinstance(data, dict) or data.get("name") != reference.name:
        raise SandboxError(f"the registry's answer is not about {reference.name}")
    version = data.get("version")
    named = isinstance(version, str) and is_version(version)
    if not named or (reference.version and version != reference.version):
        raise SandboxError(f"the registry answered with a different version: {shown(version)}")
    return data


def fetch_bundle(package: Package, reference: Reference) -> Entry:
    """Return the unpacked bundle. If it is not in the store, download it and check its digest."""
    known = store.find(f"bundle:{package.sha256}")
    if known is not None:
        return known
    key = f"download:{package.sha256}"
    with store.lock_key(key), store.StagingDirectory(key) as staging:
        path = os.path.join(staging, "archive")
        # The publisher chose this address. Without this check, a publisher could make corral send a
        # request to a service on this machine's loopback.
        download.check_url(package.identifier, after=base_url())
        digest = download.fetch_file(package.identifier, path, max_bytes=MAX_BUNDLE_BYTES)
        if digest != package.sha256:
            raise SandboxError(
                f"{shown(package.identifier, 200)} has the SHA-256 {digest}, but the registry"
                f" promised {package.sha256}",
                hint=f"it is not the file that {reference.name} published; do not run it",
            )
        return bundle.store_bundle(path, digest, origin=package.identifier)
