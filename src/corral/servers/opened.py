"""A reference -> what it asks for and the command that starts it."""

from __future__ import annotations

from corral.errors import SandboxError
from corral.record import record
from corral.servers import package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.policy import Source
    from corral.servers.reference import Reference


@record
class Choices:
    """What the user said about how a reference is to be opened."""

    scripts: bool = False
    extra: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    tell: Callable[[str], None] = lambda _: None


@record
class Opened:
    """`sources`: what the server asks for, and what the user's own values for it grant."""

    command: tuple[str, ...]
    sources: tuple[Source, ...] = ()


def open_reference(reference: Reference, arguments: Sequence[str], choices: Choices) -> Opened:
    if reference.kind in {"npm", "pypi"}:
        found = package.fetch(
            reference, scripts=choices.scripts, extra=choices.extra, tell=choices.tell
        )
        return Opened(command=(*found.argv(), *arguments))
    raise SandboxError(f"{reference.text} cannot be opened")
