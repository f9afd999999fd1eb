"""Where packages come from: what an installer may reach, and what tells one source from another."""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@record
class Registry:
    """Where packages come from: addresses that may be reached, and directories of this machine.

    `secrets` are variables that are never printed; `hidden` is struck from what is.
    """

    urls: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()


def told(urls: Iterable[str], usual: str) -> str:
    """These places in one word without credentials; "" if there is only the usual one.

    The same name at another place is another package, whoever said so: a configuration that names
    its own registry must not fill the cache for everybody else.
    """
    found = [plain(url).rstrip("/") for url in urls]
    return "" if found == [usual.rstrip("/")] else ",".join(sorted(set(found)))


def plain(url: str) -> str:
    """Without user and password."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}"
