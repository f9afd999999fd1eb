"""Define the kinds of packages that corral installs, and their registries."""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@record
class Registry:
    """Addresses that an installer may reach, and directories of this machine that it may read.

    `secrets` are variables that are never printed; `hidden` is removed from printed text.
    """

    urls: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()


@record
class InstallOptions:
    """The user's choices for an installation.

    With `scripts` the package may run code. `extra` packages are installed beside it. `runtimes`
    are the versions or paths of runtimes that the user names, such as {"python": "3.12"}.
    """

    scripts: bool = False
    extra: tuple[str, ...] = ()
    runtimes: Mapping[str, str] = {}


@record
class Source:
    """One kind of package.

    `host` is its public registry, `index` that registry's address. `fingerprint` identifies another
    registry in the user's settings; "" for the public one. `runtime` is the program that starts an
    installed package; `version` is the runtime's version unless the user names another. `links` are
    the links out of an installed package that corral itself makes.
    """

    host: str
    index: str
    fingerprint: Callable[[Mapping[str, str]], str]
    runtime: str
    version: str = ""
    links: tuple[str, ...] = ()


def fingerprint(urls: Iterable[str], default: str) -> str:
    """Return one word for these addresses, without credentials; "" if they are only the default.

    The same name in another registry is another package, and the order of registries matters. A
    configuration with its own registry must not fill the cache that others use.
    """
    found = [plain_index(url) for url in urls]
    return "" if found == [default.rstrip("/")] else ",".join(dict.fromkeys(found))


def plain_index(url: str) -> str:
    """Return the address of an index without credentials and final slashes."""
    return without_credentials(url).rstrip("/")


def without_credentials(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
