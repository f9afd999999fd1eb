"""Parse references. A reference names a package, a bundle or a server, and the user types it in
place of a command.

    npm:@scope/name@1.2.3#program     a package from npm's registry
    pypi:name[extra]==1.2.3#program   a package from PyPI
    ./server.mcpb                     a bundle
    org.example/name@1.2.3            a server in an MCP registry, also as mcp:org.example/name
    cursor:github                     a server in a client's configuration

If a reference has no version, corral looks up the newest version once and then uses it for all
runs. `#program` selects one of several programs in a package. Text in any other form is a command.
"""

from __future__ import annotations

import os

from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import shell_word, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    PackageKind = Literal["npm", "pypi"]
    Kind = Literal[PackageKind, "bundle", "registry", "client"]

SEPARATORS = {"npm": "@", "pypi": "=="}  # between name and version
BUNDLES = (".mcpb", ".dxt")
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
NAME = LETTERS | frozenset("._-")
NPM_NAME = NAME | frozenset("~")
VERSION = LETTERS | frozenset("._-+!")
MAX_NAME_LENGTH = 214  # the limit that npm sets for a name


@record
class Reference:
    """A parsed reference. `text` is what the user typed. `name` is the name of the package or the
    server, or the path of the bundle. If `version` is empty, the newest version is installed at the
    first run.
    """

    kind: Kind
    text: str
    name: str
    version: str = ""
    program: str = ""
    extras: tuple[str, ...] = ()

    def requirement(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        version = f"{SEPARATORS[self.kind]}{self.version}" if self.version else ""
        return f"{self.name}{extras}{version}"


def parse_reference(word: str) -> Reference | None:
    """Parse a word as a reference, or return None if the word is a command."""
    scheme, colon, rest = word.partition(":")
    if colon and scheme in SCHEMES:
        return SCHEMES[scheme](word, rest)
    if word.lower().endswith(BUNDLES):
        return Reference(kind="bundle", text=word, name=word)
    is_client = scheme.islower() and LETTERS.issuperset(scheme.replace("-", ""))
    if colon and rest and is_client:
        return Reference(kind="client", text=word, name=word)
    if is_server_name(word.partition("@")[0]):
        if os.path.lexists(word):
            raise SandboxError(
                f"{word} is both a file here and the name of a server in a registry",
                hint=f"type {shell_word(f'./{word}')} for the file, or {shell_word(f'mcp:{word}')}"
                " for the registry's server",
            )
        return parse_registry_server(word, word)
    return None


def parse_package(kind: PackageKind, name: str, version: str) -> Reference:
    rest = f"{name}{SEPARATORS[kind]}{version}"
    return SCHEMES[kind](f"{kind}:{rest}", rest)


def name_server(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command without the version of its package. corral stores a server's pins and
    denials under the result, so that they still apply after an upgrade.
    """
    reference = parse_reference(words[0]) if words and ":" in words[0] else None
    if reference is None or reference.kind not in SEPARATORS:
        return tuple(words)
    extras = f"[{','.join(reference.extras)}]" if reference.extras else ""
    program = f"#{reference.program}" if reference.program else ""
    return (f"{reference.kind}:{reference.name}{extras}{program}", *words[1:])


def is_server_name(text: str) -> bool:
    """Return whether a string has the form `org.example/name`. A path such as `bin/server` does not
    have this form, because the part before the slash contains no dot.
    """
    space, slash, name = text.partition("/")
    plain = NAME.issuperset(space) and NAME.issuperset(name)
    return bool(slash and name and plain and "." in space.strip(".") and not space.startswith("."))


def parse_npm(text: str, rest: str) -> Reference:
    rest, _, program = rest.partition("#")
    at = rest.find("@", 1)
    name, version = (rest, "") if at < 0 else (rest[:at], rest[at + 1 :])
    scope, slash, bare = name.rpartition("/")
    scoped = not slash or (scope.startswith("@") and is_name(scope[1:], NPM_NAME))
    if not scoped or not is_name(bare, NPM_NAME) or (at > 0 and not is_version(version)):
        raise _refused(text, "npm:@scope/name@1.2.3")
    _check_program(text, program)
    return Reference(kind="npm", text=text, name=name, version=version, program=program)


def parse_pypi(text: str, rest: str) -> Reference:
    rest, _, program = rest.partition("#")
    name, equals, version = rest.partition("==")
    name, bracket, inner = name.partition("[")
    extras = tuple(word.strip() for word in inner.removesuffix("]").split(",")) if bracket else ()
    closed = not bracket or inner.endswith("]")
    named = closed and all(is_name(word, NAME) for word in (name, *extras))
    if not named or (equals and not is_version(version)):
        raise _refused(text, "pypi:name==1.2.3")
    _check_program(text, program)
    return Reference(
        kind="pypi",
        text=text,
        name=normalize_name(name),
        version=version,
        program=program,
        extras=tuple(sorted(map(normalize_name, extras))),
    )


def parse_registry_server(text: str, rest: str) -> Reference:
    name, at, version = rest.partition("@")
    if not is_server_name(name) or (at and not is_version(version)):
        raise _refused(text, "org.example/name@1.2.3")
    return Reference(kind="registry", text=text, name=name, version=version)


SCHEMES = {"npm": parse_npm, "pypi": parse_pypi, "mcp": parse_registry_server}


def normalize_name(name: str) -> str:
    """Return the normal form of a Python project's name (PEP 503)."""
    name = name.replace("_", "-").replace(".", "-").lower()
    while "--" in name:
        name = name.replace("--", "-")
    return name


def is_name(text: str, letters: frozenset[str]) -> bool:
    """Return whether a string starts with a letter or digit, contains only characters from
    `letters`, and is not longer than a name may be. A name such as `_x` must be refused, because
    its normal form `-x` would be read as an option.
    """
    return 0 < len(text) <= MAX_NAME_LENGTH and letters.issuperset(text) and text[0] in LETTERS


def is_version(text: str) -> bool:
    return is_name(text, VERSION)


def _check_program(text: str, program: str) -> None:
    if program and not is_name(program, NAME):
        raise _refused(text, "npm:name@1.2.3#program")


def _refused(text: str, form: str) -> SandboxError:
    return SandboxError(f"{shown(text, 200)} is not a reference that corral knows", hint=form)
