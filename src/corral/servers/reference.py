"""What was typed in place of a command: a package, a bundle, a registry's or a client's server.

    npm:@scope/name@1.2.3#program     a package of npm's registry
    pypi:name[extra]==1.2.3#program   a package of PyPI
    ./server.mcpb                     a bundle
    org.example/name@1.2.3            a server of an MCP registry, also as mcp:org.example/name
    cursor:github                     a server of a client's configuration

Without a version the newest is looked up once and stays. `#program` says which of several programs
of a package is meant. Everything else is a command.
"""

from __future__ import annotations

import os
import string

from corral.errors import SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["npm", "pypi", "bundle", "registry", "client"]

BUNDLES = (".mcpb", ".dxt")
LETTERS = frozenset(string.ascii_letters + string.digits)
NAME = LETTERS | frozenset("._-")
NPM_NAME = NAME | frozenset("~")
VERSION = LETTERS | frozenset("._-+!")
LONGEST = 214  # npm's own limit for a name


@record
class Reference:
    """`text` is what was typed; `name` the package, path or server; `version` "" for the newest."""

    kind: Kind
    text: str
    name: str
    version: str = ""
    program: str = ""
    extras: tuple[str, ...] = ()


def parse(word: str) -> Reference | None:
    """None if this is a command like any other."""
    scheme, colon, rest = word.partition(":")
    if colon and scheme in {"npm", "pypi", "mcp"}:
        reader = {"npm": npm, "pypi": pypi, "mcp": registry}[scheme]
        return reader(word, rest)
    if word.lower().endswith(BUNDLES):
        return Reference(kind="bundle", text=word, name=word)
    if colon and rest and "/" not in scheme and is_client(scheme):
        return Reference(kind="client", text=word, name=word)
    if is_server_name(word.partition("@")[0]):
        if os.path.lexists(word):
            raise SandboxError(
                f"{word} is here, and is the name of a server of a registry as well",
                hint=f"./{word} is the one in this directory, mcp:{word} the registry's",
            )
        return registry(word, word)
    return None


def is_client(scheme: str) -> bool:
    return bool(scheme) and scheme.islower() and LETTERS.issuperset(scheme.replace("-", ""))


def is_server_name(text: str) -> bool:
    """`org.example/name`: the dots tell it from a relative path such as `bin/server`."""
    space, slash, name = text.partition("/")
    plain = NAME.issuperset(space) and NAME.issuperset(name)
    return bool(slash and name and plain and "." in space.strip(".") and not space.startswith("."))


def npm(text: str, rest: str) -> Reference:
    rest, _, program = rest.partition("#")
    at = rest.find("@", 1)
    name, version = (rest, "") if at < 0 else (rest[:at], rest[at + 1 :])
    scope, slash, bare = name.rpartition("/")
    scoped = not slash or (scope.startswith("@") and is_name(scope[1:], NPM_NAME))
    if not scoped or not is_name(bare, NPM_NAME) or (at > 0 and not is_version(version)):
        raise wrong(text, "npm:@scope/name@1.2.3")
    check_program(text, program)
    return Reference(kind="npm", text=text, name=name, version=version, program=program)


def pypi(text: str, rest: str) -> Reference:
    rest, _, program = rest.partition("#")
    name, equals, version = rest.partition("==")
    name, bracket, inner = name.partition("[")
    extras = tuple(word.strip() for word in inner.removesuffix("]").split(",")) if bracket else ()
    closed = not bracket or inner.endswith("]")
    if not closed or not all(is_name(word, NAME) for word in (name, *extras)):
        raise wrong(text, "pypi:name==1.2.3")
    if equals and not is_version(version):
        raise wrong(text, "pypi:name==1.2.3")
    check_program(text, program)
    return Reference(
        kind="pypi",
        text=text,
        name=normal(name),
        version=version,
        program=program,
        extras=tuple(sorted(map(normal, extras))),
    )


def registry(text: str, rest: str) -> Reference:
    name, at, version = rest.partition("@")
    if not is_server_name(name) or (at and not is_version(version)):
        raise wrong(text, "org.example/name@1.2.3")
    return Reference(kind="registry", text=text, name=name, version=version)


def normal(name: str) -> str:
    """One spelling of a Python project's name (PEP 503)."""
    for mark in "_.":
        name = name.replace(mark, "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name.lower()


def is_name(text: str, letters: frozenset[str]) -> bool:
    """Letters, digits and marks, and never `.`, `..`, or something that looks like an option."""
    return 0 < len(text) <= LONGEST and letters.issuperset(text) and text[0] not in ".-"


def is_version(text: str) -> bool:
    return bool(text) and len(text) <= LONGEST and VERSION.issuperset(text) and text[0] not in ".-"


def check_program(text: str, program: str) -> None:
    if program and not is_name(program, NAME):
        raise wrong(text, "npm:name@1.2.3#program")


def wrong(text: str, form: str) -> SandboxError:
    from corral.safe_text import shown

    return SandboxError(f"{shown(text, 200)} is not a reference that corral knows", hint=form)
