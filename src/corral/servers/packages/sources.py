"""Define the values that describe a kind of package, its registries, and the options of an
installation.
"""

from collections.abc import Callable, Iterable, Mapping

from corral.record import record


@record
class Registry:
    """The addresses that an installer may reach, the directories on this machine that it may read,
    and the variables that it gets.
    """

    urls: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}  # more variables, whose values are never printed
    hidden: tuple[str, ...] = ()  # strings that are masked in the installer's output


@record
class InstallOptions:
    """The user's choices for an installation. If `scripts` is true, the package may run code while
    it is installed. `extra` lists packages that are installed together with it.
    """

    scripts: bool = False
    extra: tuple[str, ...] = ()
    # The versions or paths of the runtimes that the user chose, such as {"python": "3.12"}.
    runtimes: Mapping[str, str] = {}


@record
class Source:
    """A kind of package, npm or PyPI.

    `host` is the host of its public registry, and `index` is the address of this registry.
    `fingerprint` reads the user's settings, for which it needs the environment variables. It
    returns a string that identifies the registries in the settings, or "" if they name only the
    public registry. `runtime` is the program that runs an installed package.
    """

    host: str
    index: str
    fingerprint: Callable[[Mapping[str, str]], str]
    runtime: str
    version: str = ""  # the default version of the runtime
    links: tuple[str, ...] = ()  # links that corral makes, and that lead out of the package


def fingerprint(urls: Iterable[str], default: str) -> str:
    """Return a string that identifies these registries, without credentials. Return "" if the only
    registry is the default one.

    The string becomes part of an installation's key, because two registries can have different
    packages of the same name. The string keeps the order of the registries, because this order can
    decide where a package comes from.
    """
    found = [plain_index(url) for url in urls]
    return "" if found == [default.rstrip("/")] else ",".join(dict.fromkeys(found))


def plain_index(url: str) -> str:
    """Return the address of an index without credentials and without slashes at the end."""
    return without_credentials(url).rstrip("/")


def without_credentials(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
