"""Where packages are installed from."""

from collections.abc import Callable, Iterable, Mapping

from corral.record import record


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
class Source:
    """One kind of package.

    `host` is its public registry. `fingerprint` tells another registry in the user's settings from
    that one, "" if there is none. `runtime` is what an installed package needs besides itself.
    `links` are the links out of an installed package that corral itself makes.
    """

    host: str
    fingerprint: Callable[[Mapping[str, str]], str]
    runtime: str = ""
    links: tuple[str, ...] = ()


def fingerprint(urls: Iterable[str], default: str) -> str:
    """Return one word for these addresses, without credentials; "" if they are only the default.

    The same name in another registry is another package. A configuration that names its own
    registry must not fill the cache for everybody else.
    """
    found = [without_credentials(url).rstrip("/") for url in urls]
    return "" if found == [default.rstrip("/")] else ",".join(sorted(set(found)))


def without_credentials(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
