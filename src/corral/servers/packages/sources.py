"""Define the kinds of packages that corral installs, and their registries."""

from collections.abc import Callable, Iterable, Mapping

from corral.record import record


@record
class Registry:
    """Addresses that an installer may reach, and directories of this machine that it may read."""

    urls: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}  # variables that are never printed
    hidden: tuple[str, ...] = ()  # removed from printed text


@record
class InstallOptions:
    """The user's choices for an installation. With `scripts` the package may run code. `extra`
    packages are installed beside it.
    """

    scripts: bool = False
    extra: tuple[str, ...] = ()
    runtimes: Mapping[str, str] = {}  # versions or paths, such as {"python": "3.12"}


@record
class Source:
    """One kind of package. `host` is its public registry, and `index` that registry's address.

    `fingerprint` returns a text that identifies the registries in the user's settings, or "" if
    only the public one is used. `runtime` is the program that starts an installed package.
    """

    host: str
    index: str
    fingerprint: Callable[[Mapping[str, str]], str]
    runtime: str
    version: str = ""  # the runtime's version, unless the user names another
    links: tuple[str, ...] = ()  # links out of an installed package that corral itself makes


def fingerprint(urls: Iterable[str], default: str) -> str:
    """Return a text that identifies these registries, without credentials. Return "" if the default
    registry is the only one.

    The text is a part of an installation's key, because the same name in another registry is
    another package. The order of registries matters, too.
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
