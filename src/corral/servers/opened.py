"""A reference -> what it asks for and the command that starts it."""

from __future__ import annotations

from corral.errors import SandboxError
from corral.record import record
from corral.servers import directory, package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from corral.policy import Source
    from corral.servers.reference import Reference
    from corral.servers.store import Entry
    from corral.trust import Request


@record
class Choices:
    """What the user said about how a reference is to be opened.

    `provided` are variables that the user passes; not `complete`: it is only looked at.
    """

    scripts: bool = False
    extra: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    complete: bool = True
    tell: Callable[[str], None] = lambda _: None


@record
class Opened:
    """`granted` is what the user's own values for the server allow; `secrets` are such values."""

    command: tuple[str, ...]
    request: Request | None = None
    granted: tuple[Source, ...] = ()
    secrets: Mapping[str, str] = {}


def open_reference(reference: Reference, arguments: Sequence[str], choices: Choices) -> Opened:
    match reference.kind:
        case "npm" | "pypi":
            found = package.fetch(
                reference, scripts=choices.scripts, extra=choices.extra, tell=choices.tell
            )
            command = found.argv()
            # A wheel's .pth line or a program's `#!` line would be a grant in disguise.
            directory.check(command, found.path())
            return Opened(command=(*command, *arguments))
        case "bundle":
            return open_bundle(reference.name, arguments, choices)
        case "registry":
            from corral.servers.registry import open_server

            return open_server(reference, arguments, choices)
        case "client":
            raise SandboxError(f"{reference.text} leads to another client's server")


def open_bundle(path: str, arguments: Sequence[str], choices: Choices) -> Opened:
    from corral.servers import bundle

    digest = bundle.digest_of(path)
    return open_entry(bundle.unpacked(path, digest), digest, path, arguments, choices)


def open_entry(
    entry: Entry, digest: str, origin: str, arguments: Sequence[str], choices: Choices
) -> Opened:
    """A bundle that is in the store; `origin` is how the user calls it."""
    from corral.servers import bundle

    start = bundle.open_unpacked(
        entry,
        digest,
        origin,
        arguments,
        config=choices.config,
        provided=choices.provided,
        complete=choices.complete,
    )
    for text in start.warnings:
        choices.tell(f"warning: {text}")
    return Opened(
        command=start.command,
        request=start.request,
        granted=(start.granted,),
        secrets=start.secrets,
    )
