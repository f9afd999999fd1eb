"""Parse server.json of an MCP registry: the server's package, arguments and variables."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from corral.errors import SandboxError
from corral.policy.manifest import Manifest
from corral.policy.variables import is_loader_variable, is_secret
from corral.record import record
from corral.safe_text import is_digest, shell_word, shown
from corral.servers.packages.package import SOURCES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.servers.reference import PackageKind

VARIABLE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")


@record
class Package:
    kind: PackageKind | Literal["mcpb"]
    identifier: str
    version: str
    sha256: str = ""
    arguments: tuple[Mapping[str, object], ...] = ()
    variables: tuple[Mapping[str, object], ...] = ()
    has_runtime_arguments: bool = False


@record
class Variables:
    """The environment variables of a package, by the permissions that they need.

    `asked` contains the variables that need the user's approval, because the publisher has set
    their values or because they come from the user's environment. `granted` contains the variables
    for which the user gave a value. `secrets` maps the names of secret variables to the values that
    the user gave.
    """

    asked: Manifest
    granted: Manifest
    secrets: Mapping[str, str]


def choose_package(data: Mapping[str, object], name: str) -> Package:
    """Return the first package that corral can run and that uses stdin and stdout."""
    why: list[str] = []
    for item in _tables(data.get("packages")):
        kind, transport = str(item.get("registryType")), item.get("transport")
        speaks = transport.get("type") if isinstance(transport, dict) else "stdio"
        if kind not in {*SOURCES, "mcpb"}:
            why.append(f"{shown(kind)} packages are not supported")
        elif speaks != "stdio":
            why.append(f"{shown(speaks)} is not a transport that corral supports")
        else:
            return _parse_package(item, kind)
    remotes = "it is reached over the network" if data.get("remotes") else "it names no package"
    raise SandboxError(f"{name} has no package to run: " + ("; ".join(why) or remotes))


def _parse_package(item: Mapping[str, object], kind: str) -> Package:
    url = item.get("registryBaseUrl")
    if kind in SOURCES and isinstance(url, str) and _host(url) != SOURCES[kind].host:
        raise SandboxError(
            f"the package is in another registry, {shown(url, 200)}",
            hint=f"configure {kind} for it, and run {kind}:NAME",
        )
    identifier, version = item.get("identifier"), item.get("version", "")
    sha256 = item.get("fileSha256", "")
    if not isinstance(identifier, str) or not isinstance(version, str):
        raise SandboxError("server.json names no package")
    if kind == "mcpb" and not (isinstance(sha256, str) and is_digest(sha256)):
        raise SandboxError("server.json has no fileSha256, so its bundle cannot be verified")
    if kind != "mcpb" and not version:
        raise SandboxError("server.json names no version of its package")
    return Package(
        kind=kind,  # type: ignore[arg-type] # the caller checked it
        identifier=identifier,
        version=version,
        sha256=str(sha256),
        arguments=_tables(item.get("packageArguments")),
        variables=_tables(item.get("environmentVariables")),
        has_runtime_arguments=bool(item.get("runtimeArguments")),
    )


def _host(url: str) -> str | None:
    from urllib.parse import urlsplit

    try:
        return urlsplit(url).hostname
    except ValueError:  # such as "https://["
        return None


def build_arguments(
    package: Package, given: Mapping[str, str], *, complete: bool
) -> tuple[list[str], list[str]]:
    """Return the arguments for the package's program. Also return the paths among them that the
    user gave.
    """
    words: list[str] = []
    paths: list[str] = []
    for item in package.arguments:
        named = item.get("type") == "named"
        key = str(item.get("name" if named else "valueHint") or "")
        value, own = _resolve_value(item, key.lstrip("-"), given)
        if value is None and item.get("isRequired") and complete:
            raise SandboxError(
                f"an argument has no value: {shown(key)}",
                hint=f"--config {shell_word(key.lstrip('-'))}=VALUE:"
                f" {shown(item.get('description', ''), 200)}",
            )
        # Grant a path only if it is exactly a value that the user gave. The publisher can put the
        # user's value into a longer path, such as `{folder}/../.ssh`, which must not be granted.
        granted = own and item.get("format") == "filepath" and value in given.values()
        if value is not None and granted:
            value = os.path.abspath(os.path.expanduser(value))
            paths.append(value)
        if named and (value is not None or _is_switch(item)):
            words.append(key)
        if value is not None:
            words.append(value)
    return words, paths


def _is_switch(item: Mapping[str, object]) -> bool:
    return not {"value", "default", "valueHint", "format", "choices"} & item.keys()


def _resolve_value(
    item: Mapping[str, object], key: str, given: Mapping[str, str]
) -> tuple[str | None, bool]:
    """Return the value of an argument or variable, and whether it contains a value that the user
    gave.
    """
    if isinstance(fixed := item.get("value"), str):
        inner = item.get("variables")
        known = inner if isinstance(inner, dict) else {}
        return _fill_template(fixed, known, given)
    if key in given:
        choices = item.get("choices")
        if isinstance(choices, list) and choices and given[key] not in choices:
            raise SandboxError(f"{shown(key)} must be one of {', '.join(map(shown, choices))}")
        return given[key], True
    default = item.get("default")
    return (default, False) if isinstance(default, str) else (None, False)


def _fill_template(
    text: str, known: Mapping[str, object], given: Mapping[str, str]
) -> tuple[str | None, bool]:
    """Replace each `{name}` with its value. A `{name}` inside an inserted value is not replaced.

    Return the text, or None if a value is missing. Also return whether the text contains a value
    that the user gave.
    """
    own = False
    lacking = False

    def replacement(found: re.Match[str]) -> str:
        nonlocal own, lacking
        inner = known.get(found[1])
        if not isinstance(inner, dict):
            return found[0]
        value, users = _resolve_value({**inner}, found[1], given)
        own, lacking = own or users, lacking or value is None
        return value or ""

    result = VARIABLE.sub(replacement, text)
    return (None if lacking else result), own


def collect_variables(
    package: Package, given: Mapping[str, str], provided: Collection[str], *, complete: bool
) -> Variables:
    asked: dict[str, str] = {}
    granted: dict[str, str] = {}
    secrets: dict[str, str] = {}
    wanted: list[tuple[str, bool]] = []
    for item in package.variables:
        name = item.get("name")
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise SandboxError(
                f"server.json names a variable {shown(name)}, which is not a valid name"
            )
        if name in provided:
            continue
        value, own = _resolve_value(item, name, given)
        if value is not None:
            target = (secrets if item.get("isSecret") else granted) if own else asked
            target[name] = value
        elif item.get("isRequired"):
            if name not in os.environ and complete:
                raise SandboxError(
                    f"the variable {name} has no value: {shown(item.get('description', ''), 200)}",
                    hint=f"set it and give --secret {name}, or --config {name}=VALUE",
                )
            wanted.append((name, item.get("isSecret") is True))
    # The user sets secrets in corral's own environment. Variables such as LD_PRELOAD or PYTHONPATH
    # would load code into corral there, so a server may not ask for them.
    for name in filter(is_loader_variable, secrets):
        raise SandboxError(f"server.json asks for the secret {name}, which a server may not set")
    return Variables(
        asked=Manifest(
            origin="",
            set_values=tuple(asked.items()) or None,
            secret_names=tuple(name for name, secret in wanted if secret) or None,
            pass_names=tuple(name for name, secret in wanted if not secret) or None,
        ),
        granted=Manifest(
            origin="your values",
            set_values=tuple(granted.items()) or None,
            secret_names=tuple(secrets) or None,
        ),
        secrets=secrets,
    )


def find_given_secrets(given: Mapping[str, str], variables: Variables) -> tuple[str, ...]:
    """Return the user's values that are in secret variables or look like secrets."""
    return tuple(
        value
        for key, value in given.items()
        if is_secret(key, value) or any(value in text for text in variables.secrets.values())
    )


def _tables(value: object) -> tuple[Mapping[str, object], ...]:
    items = value if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, dict))
