"""server.json of the MCP registry: the package it names, its arguments and variables."""

from __future__ import annotations

import os
import re

from corral.errors import SandboxError
from corral.policy.manifest import Manifest
from corral.record import record
from corral.safe_text import is_digest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Literal

    Kind = Literal["npm", "pypi", "mcpb"]

HOMES = {"npm": "registry.npmjs.org", "pypi": "pypi.org"}
VARIABLE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")


@record
class Package:
    kind: Kind
    identifier: str
    version: str
    sha256: str = ""
    arguments: tuple[Mapping[str, object], ...] = ()
    variables: tuple[Mapping[str, object], ...] = ()
    runtime: bool = False


@record
class Wishes:
    """`asked` is the publisher's word, `granted` the user's; `secrets` are values of the user's."""

    asked: Manifest
    granted: Manifest
    secrets: Mapping[str, str]


def choose(data: Mapping[str, object], name: str) -> Package:
    """The first package that can be run here and speaks over stdin and stdout."""
    why: list[str] = []
    for item in tables(data.get("packages")):
        kind, transport = str(item.get("registryType")), item.get("transport")
        speaks = transport.get("type") if isinstance(transport, dict) else "stdio"
        if kind not in {"npm", "pypi", "mcpb"}:
            why.append(f"{shown(kind)} packages are not run")
        elif speaks != "stdio":
            why.append(f"{shown(speaks)} is no transport that corral runs")
        else:
            return read(item, kind)
    remotes = "it is reached over the network" if data.get("remotes") else "it names no package"
    raise SandboxError(f"{name} has nothing to run: " + ("; ".join(why) or remotes))


def read(item: Mapping[str, object], kind: str) -> Package:
    home = item.get("registryBaseUrl")
    if kind in HOMES and isinstance(home, str) and host(home) != HOMES[kind]:
        raise SandboxError(
            f"the package is in another registry, {shown(home, 200)}",
            hint=f"configure {kind} for it, and run {kind}:NAME",
        )
    identifier, version = item.get("identifier"), item.get("version", "")
    sha256 = item.get("fileSha256", "")
    if not isinstance(identifier, str) or not isinstance(version, str):
        raise SandboxError("server.json names no package")
    if kind == "mcpb" and not is_digest(sha256):
        raise SandboxError("server.json has no fileSha256 for its bundle: it cannot be verified")
    if kind != "mcpb" and not version:
        raise SandboxError("server.json names no version of its package")
    return Package(
        kind=kind,  # type: ignore[arg-type] # the caller looked
        identifier=identifier,
        version=version,
        sha256=str(sha256),
        arguments=tables(item.get("packageArguments")),
        variables=tables(item.get("environmentVariables")),
        runtime=bool(item.get("runtimeArguments")),
    )


def host(url: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(url).hostname or ""


def given(config: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in config:
        key, equals, value = word.partition("=")
        if not equals:
            raise SandboxError(f"--config {shown(key)} has no value", hint="--config KEY=VALUE")
        found[key] = value
    return found


def arguments(
    package: Package, said: Mapping[str, str], *, complete: bool
) -> tuple[list[str], list[str]]:
    """(the words, paths among them that the user named)."""
    words: list[str] = []
    paths: list[str] = []
    for item in package.arguments:
        named = item.get("type") == "named"
        key = str(item.get("name" if named else "valueHint") or "")
        value, own = resolved(item, key.lstrip("-"), said)
        if value is None and item.get("isRequired") and complete:
            raise SandboxError(
                f"an argument has no value: {shown(key)}",
                hint=f"--config {key.lstrip('-')}=VALUE: {shown(item.get('description', ''), 200)}",
            )
        # Only the user's word with nothing around it: a publisher can write `{folder}/../.ssh`.
        whole = own and item.get("format") == "filepath" and value in said.values()
        if value is not None and whole:
            value = os.path.abspath(os.path.expanduser(value))
            paths.append(value)
        if named and (value is not None or flag_only(item)):
            words.append(key)
        if value is not None:
            words.append(value)
    return words, paths


def flag_only(item: Mapping[str, object]) -> bool:
    """`--flag` by itself: nothing says that it has a value."""
    return not {"value", "default", "valueHint", "format", "choices"} & item.keys()


def resolved(
    item: Mapping[str, object], key: str, said: Mapping[str, str]
) -> tuple[str | None, bool]:
    """(the value, whether it is the user's own)."""
    if isinstance(fixed := item.get("value"), str):
        inner = item.get("variables")
        known = inner if isinstance(inner, dict) else {}
        return filled(fixed, known, said)
    if key in said:
        choices = item.get("choices")
        if isinstance(choices, list) and choices and said[key] not in choices:
            raise SandboxError(f"{shown(key)} is one of {', '.join(map(shown, choices))}")
        return said[key], True
    default = item.get("default")
    return (default, False) if isinstance(default, str) else (None, False)


def filled(
    text: str, known: Mapping[str, object], said: Mapping[str, str]
) -> tuple[str | None, bool]:
    """Once: braces in a value that was filled in are only braces. None if something is missing."""
    own = False
    lacking = False

    def one(found: re.Match[str]) -> str:
        nonlocal own, lacking
        inner = known.get(found[1])
        if not isinstance(inner, dict):
            return found[0]
        value, users = resolved({**inner}, found[1], said)
        own, lacking = own or users, lacking or value is None
        return value or ""

    result = VARIABLE.sub(one, text)
    return (None if lacking else result), own


def variables(
    package: Package, said: Mapping[str, str], provided: Collection[str], *, complete: bool
) -> Wishes:
    asked: dict[str, str] = {}
    put: dict[str, str] = {}
    secrets: dict[str, str] = {}
    wanted: list[tuple[str, bool]] = []
    for item in package.variables:
        name = item.get("name")
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise SandboxError(f"server.json names a variable {shown(name)}")
        if name in provided:
            continue
        value, own = resolved(item, name, said)
        if value is not None:
            place = (secrets if item.get("isSecret") else put) if own else asked
            place[name] = value
        elif item.get("isRequired"):
            if name not in os.environ and complete:
                raise SandboxError(
                    f"the variable {name} has no value: {shown(item.get('description', ''), 200)}",
                    hint=f"set it and give --secret {name}, or --config {name}=VALUE",
                )
            wanted.append((name, item.get("isSecret") is True))
    return Wishes(
        asked=Manifest(
            origin="",
            set_values=tuple(asked.items()) or None,
            secret_names=tuple(name for name, secret in wanted if secret) or None,
            pass_names=tuple(name for name, secret in wanted if not secret) or None,
        ),
        granted=Manifest(
            origin="your values",
            set_values=tuple(put.items()) or None,
            secret_names=tuple(secrets) or None,
        ),
        secrets=checked(secrets),
    )


def checked(secrets: dict[str, str]) -> dict[str, str]:
    """These pass through corral's own environment, so none may be one that corral goes by."""
    from corral.policy.variables import is_loader_variable

    for name in secrets:
        if is_loader_variable(name):
            raise SandboxError(f"server.json calls {name} a secret, which it may not set")
    return secrets


def tables(value: object) -> tuple[Mapping[str, object], ...]:
    items = value if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, dict))
