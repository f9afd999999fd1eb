"""A package of npm's registry: installed once with the host's npm, run by node alone.

Install scripts are off: nothing of the package runs before the server itself does. npm checks each
archive against the registry's checksum; the lock file with all of them stays in the tree.
"""

from __future__ import annotations

import json
import os

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.servers.install import Registry, run
from corral.units import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.servers.reference import Reference

DEFAULT = "https://registry.npmjs.org/"
CREDENTIALS = ("_authToken", "_auth", "_password", "username", "email")
FLAGS = (
    "install", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--no-progress",
    "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000",
)  # fmt: skip
SETTINGS = ".npmrc"
LOCK = "package-lock.json"
HINT = "install Node.js, which brings npm, or name the server's own command"


def install(
    reference: Reference, staging: str, *, scripts: bool, extra: Sequence[str]
) -> dict[str, object]:
    """Into `staging`; what the store should remember."""
    if extra:
        raise SandboxError("--with is for pypi: packages", hint="npm: has no such thing")
    registry = settings(os.environ)
    wanted = reference.version or "latest"
    put(staging, "package.json", json.dumps({"private": True, "dependencies": {
        reference.name: wanted,
    }}))  # fmt: skip
    put(staging, SETTINGS, "".join(f"{k}={v}\n" for k, v in lines(registry, os.environ)))
    try:
        run(
            [npm_program(), *FLAGS, *([] if scripts else ["--ignore-scripts"])],
            staging=staging,
            registry=registry,
            label=reference.text,
            settings={
                "npm_config_userconfig": os.path.join(staging, SETTINGS),
                "npm_config_globalconfig": os.path.join(staging, ".none"),
                "npm_config_prefix": "/tmp/prefix",  # noqa: S108 - the sandbox's own
            },
            subprocess=scripts,
        )
    finally:
        os.unlink(os.path.join(staging, SETTINGS))
    version, integrity = locked(staging, reference.name)
    return {
        "version": version,
        "integrity": integrity,
        "origin": registry.urls[0],
        "command": command(staging, reference),
    }


def npm_program() -> str:
    from corral.servers.reach import Caller

    caller = Caller(environment=os.environ, cwd="/", home="")
    found = caller.lookup("npm")
    if not found:
        raise CommandError("npm was not found on PATH", exit_code=EXIT_NOT_FOUND, hint=HINT)
    return found


def put(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(text)


def settings(environment: Mapping[str, str]) -> Registry:
    """The registries that the user's own npm would ask, with what it would show them."""
    found = read_settings(environment)
    urls = [found.get("registry", DEFAULT)]
    urls += [value for key, value in found.items() if is_scope(key)]
    for url in urls:
        if not url.startswith(("https://", "http://")):
            raise SandboxError(f"the npm registry {shown(url)} is no web address")
    values = [found[key] for key in credentials(found, urls)]
    authority = found.get("cafile", "")
    return Registry(
        urls=tuple(dict.fromkeys(urls)),
        secrets={f"CORRAL_NPM_{at}": value for at, value in enumerate(values)},
        hidden=tuple(filter(None, values)),
        reads=(authority,) if os.path.isabs(authority) and os.path.isfile(authority) else (),
    )


def is_scope(key: str) -> bool:
    return key.startswith("@") and key.endswith(":registry")


def credentials(found: Mapping[str, str], urls: Sequence[str]) -> list[str]:
    """The keys that are for one of these registries; the others are none of its business."""
    places = [url.partition(":")[2].rstrip("/") + "/" for url in urls]
    return [
        key
        for key in found
        if key.startswith("//")
        and key.endswith(CREDENTIALS)
        and any(place.startswith(key.rpartition(":")[0].rstrip("/") + "/") for place in places)
    ]


def lines(registry: Registry, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings file inside; credentials stay in variables that nothing prints."""
    found = read_settings(environment)
    kept = {key: value for key, value in found.items() if is_scope(key) or key == "cafile"}
    named = zip(credentials(found, registry.urls), registry.secrets, strict=True)
    return [
        ("registry", registry.urls[0]),
        *kept.items(),
        *((key, f"${{{variable}}}") for key, variable in named),
    ]


def read_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of npm, weakest first: the machine's, the user's, the environment's.

    The working directory's are left out: it may be anybody's.
    """
    from corral.directories import home_directory

    own = environment.get("NPM_CONFIG_USERCONFIG") or environment.get("npm_config_userconfig")
    files = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"]
    files.append(own or os.path.join(home_directory(environment), SETTINGS))
    found: dict[str, str] = {}
    for file in files:
        found.update(read_lines(file, environment))
    for name, value in environment.items():
        if name.lower() in {"npm_config_registry", "npm_config_cafile"} and value:
            found[name.lower().removeprefix("npm_config_")] = value
    return found


def read_lines(file: str, environment: Mapping[str, str]) -> dict[str, str]:
    import re

    from corral.servers.reach import read_text

    found: dict[str, str] = {}
    for line in read_text(file).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            text = value.strip().strip("\"'")
            whole = re.sub(r"\$\{(\w+)\}", lambda m: environment.get(m[1], ""), text)
            found[key.strip()] = whole
    return found


def locked(staging: str, name: str) -> tuple[str, str]:
    """(version, integrity) of the package; every other must have been checked as well."""
    packages = read_json(os.path.join(staging, LOCK)).get("packages")
    found = packages if isinstance(packages, dict) else {}
    for place, item in found.items():
        checked = not place or item.get("integrity") or item.get("inBundle")
        if not checked or item.get("link"):
            raise SandboxError(f"{shown(place, 200)} came without a checksum")
    own = found.get(f"node_modules/{name}")
    if not isinstance(own, dict) or not own.get("version"):
        raise SandboxError(f"npm did not install {name}")
    return str(own["version"]), str(own["integrity"])


def command(staging: str, reference: Reference) -> list[str]:
    """The package's program with node, or the program itself if it is none of node's."""
    folder = os.path.join("node_modules", *reference.name.split("/"))
    package = read_json(os.path.join(staging, folder, "package.json"))
    bins = package.get("bin")
    bare = reference.name.rpartition("/")[2]
    programs = {bare: bins} if isinstance(bins, str) else bins if isinstance(bins, dict) else {}
    name = choose(list(programs), reference, bare)
    path = os.path.normpath(os.path.join(folder, str(programs[name])))
    if not path.startswith("node_modules" + os.sep):
        raise SandboxError(f"the program {shown(name)} of {reference.name} lies outside of it")
    with open(os.path.join(staging, path), "rb") as file:
        head = file.readline(256)
    if head.startswith(b"#!") and b"node" not in head:
        return [f"{{tree}}/{path}"]
    return ["node", f"{{tree}}/{path}"]


def choose(programs: Sequence[str], reference: Reference, usual: str) -> str:
    """As npx and uvx do: the one that was named, the only one, the one named like the package."""
    if not programs:
        raise SandboxError(f"{reference.name} has no program to run: it is a library")
    if reference.program:
        if reference.program in programs:
            return reference.program
    elif len(programs) == 1:
        return programs[0]
    elif usual in programs:
        return usual
    what = reference.program or "one program"
    raise SandboxError(
        f"{reference.name} does not have {what}, but " + ", ".join(map(shown, sorted(programs))),
        hint=f"say which: {reference.text.partition('#')[0]}#{min(programs)}",
    )


def read_json(path: str) -> dict[str, object]:
    try:
        with open(path, encoding="utf-8") as file:
            data: object = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(f"{shown(path, 200)} cannot be read: {error}") from None
    return data if isinstance(data, dict) else {}
