"""Test installations from registries that are silent, broken or behind TLS. The package managers
are real.
"""

from __future__ import annotations

import io
import os
import pathlib
import socket
import ssl
import zipfile
from collections.abc import Iterator

import pytest
from test_packages import ONE_USER, REFUSED, publish, said

import rigs
from corral.servers.packages import npm, pypi, sandboxed_install
from corral.servers.packages.sources import InstallOptions
from corral.servers.reference import parse_reference
from corral.servers.store.store import StagingDirectory, UnfinishedError
from registries import Registries, wheel

INSTALLERS = pytest.mark.parametrize("installer", ["npm", "uv", "pip"])
TLS = pathlib.Path(__file__).parents[1] / "tls"
AUTHORITY = TLS / "registry-authority.pem"


def choose(installer: str, env: dict[str, str], tools: pathlib.Path) -> dict[str, str]:
    """Return an environment in which corral chooses this package manager."""
    if rig := {"npm": "node", "pip": "pip"}.get(installer):
        rigs.need(rig)
    return {**env, "PATH": f"{tools}:{env['PATH']}" if installer == "uv" else "/usr/bin:/bin"}


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a registry that accepts connections but never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@INSTALLERS
@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_a_registry_that_never_answers_is_reported_before_the_installer_gives_up(
    user, env, silent, tools, installer, monkeypatch
):
    """Use a registry that never answers. corral must report this before the package manager gives
    up. The package managers and their sandbox are real, but the test lowers the time limits.
    """
    assert sandboxed_install.SILENT_SECONDS < 15
    chosen = choose(installer, env, tools)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "npm_config_userconfig", "PATH"):
        monkeypatch.setenv(name, chosen[name])
    monkeypatch.setenv("npm_config_registry", f"{silent}/")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{silent}/simple")
    monkeypatch.setattr(sandboxed_install, "SILENT_SECONDS", 1)
    monkeypatch.setattr(pypi, "FETCH_SECONDS", 3)
    monkeypatch.setitem(pypi.UV, "UV_HTTP_TIMEOUT", "3")
    monkeypatch.setattr(npm, "FLAGS", [*npm.FLAGS, "--fetch-timeout=3000"])
    reference = parse_reference("npm:server" if installer == "npm" else "pypi:server")
    module = npm if installer == "npm" else pypi
    lines: list[str] = []
    with pytest.raises(UnfinishedError) as caught, StagingDirectory(reference.text) as staging:
        module.install(reference, staging, InstallOptions(), lines.append)
    (line,) = lines
    assert line.startswith("127.0.0.1 has not answered for ")
    assert line.endswith("the installer gives up after two attempts of 30 s each")
    assert "the registry does not answer" in str(caught.value)
    assert "try again later" in caught.value.hint


def with_requirement(made: bytes, line: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(made)) as old, zipfile.ZipFile(held, "w") as new:
        for name in old.namelist():
            more = f"{line}\n".encode() if name.endswith("METADATA") else b""
            new.writestr(name, old.read(name) + more)
    return held.getvalue()


@ONE_USER
@INSTALLERS
def test_a_missing_version_of_a_dependency_is_named_with_its_own_hint(
    user, env, registry, tools, installer
):
    env = choose(installer, env, tools)
    registry.publish_npm("dep", "2.0.0", {"index.js": ""})
    publish(registry, dependencies={"dep": "^5"})
    registry.publish_wheel("dep", "2.0.0", {"dep.py": ""}, {})
    made = wheel("server", "1.0.0", {"server.py": "def main(): pass"}, {"server": "server:main"})
    made = with_requirement(made, "Requires-Dist: dep>=5")
    registry.publish_file("server", "server-1.0.0-py3-none-any.whl", made)
    done = user.corral("run", "npm:server" if installer == "npm" else "pypi:server", env=env)
    assert done.returncode == REFUSED
    assert b"there is no such version of dep" in done.stderr
    assert b"hint: another package depends on it" in done.stderr
    assert b"leave the version out" not in done.stderr


@ONE_USER
def test_a_package_that_needs_another_version_of_node_is_reported(user, env, registry, npm):
    """Install a package whose `engines` asks for another version of node. corral must start it with
    only a warning, as npx does.
    """
    publish(registry, "1.0.0", engines={"node": ">=1"})
    publish(registry, "2.0.0", engines={"node": ">=999"})
    publish(registry, "3.0.0", name="only", engines={"node": ">=999"})
    # Sanity check: without a version, corral starts an older one that fits this node.
    fits = user.corral("run", "npm:server", env=env)
    assert said(fits)["version"] == "1.0.0"
    assert b"needs node" not in fits.stderr
    exact = user.corral("run", "npm:server@2.0.0", env=env)
    assert said(exact)["version"] == "2.0.0"
    assert b"corral: server 2.0.0 needs node >=999, and this is node " in exact.stderr
    assert b"; leave out the version to get the newest server that fits\n" in exact.stderr
    only = user.corral("run", "npm:only", env=env)
    assert said(only)["version"] == "3.0.0"
    assert b"corral: only 3.0.0 needs node >=999, and this is node " in only.stderr
    assert b"; --node chooses another node\n" in only.stderr


@pytest.fixture
def encrypted(request) -> Iterator[Registries]:
    """Yield a registry over TLS at 127.0.0.1, or at the address in the test's parameter. The
    registry's certificate is valid only for 127.0.0.1.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "registry-certificate.pem", TLS / "registry-key.pem")
    made = Registries(context, getattr(request, "param", "127.0.0.1"))
    publish(made)
    body = {"server.py": "def main(): print('{}')"}
    made.publish_wheel("server", "1.0.0", body, {"server": "server:main"})
    yield made
    made.close()


def use(registry: Registries, env: dict[str, str]) -> dict[str, str]:
    urls = {"npm_config_registry": f"{registry.url}/", "UV_DEFAULT_INDEX": f"{registry.url}/simple"}
    return {**env, **urls}


def put_certificates(user, source: pathlib.Path, place: pathlib.Path) -> None:
    place.write_bytes(source.read_bytes())
    os.chown(place, user.uid, user.uid)


@ONE_USER
@pytest.mark.parametrize("form", ["~/ca.pem", "./ca.pem", "ca.pem", "${HOME}/ca.pem", "{}/ca.pem"])
def test_npms_cafile_is_read_as_npm_reads_it(user, env, encrypted, npm, scratch, form):
    """Write npm's `cafile` setting in different forms. corral must find the file, so that the
    registry is trusted. Sanity check: without the setting, the registry is not trusted.
    """
    env = {**use(encrypted, env), "HOME": str(scratch)}
    refused = user.corral("run", "npm:server", env=env, cwd=scratch)
    assert refused.returncode == REFUSED
    assert b"the registry's certificate is not trusted" in refused.stderr
    put_certificates(user, AUTHORITY, scratch / "ca.pem")
    settings = pathlib.Path(env["npm_config_userconfig"])
    settings.write_text(f"cafile={form.replace('{}', str(scratch))}\n")
    os.chown(settings, user.uid, user.uid)
    done = user.corral("run", "npm:server", env=env, cwd=scratch)
    assert said(done)["version"] == "1.0.0"


@ONE_USER
@pytest.mark.parametrize(
    ("installer", "variable"),
    [("uv", "SSL_CERT_FILE"), ("pip", "PIP_CERT"), ("npm", "npm_config_cafile")],
)
def test_a_registry_with_its_own_certificate_authority_works_if_a_variable_names_it(
    user, env, encrypted, tools, scratch, installer, variable
):
    env = use(encrypted, choose(installer, env, tools))
    put_certificates(user, AUTHORITY, scratch / "ca.pem")
    word = "npm:server" if installer == "npm" else "pypi:server"
    refused = user.corral("run", word, env=env)
    assert refused.returncode == REFUSED
    assert b"the registry's certificate is not trusted" in refused.stderr
    # The hint names the setting that makes the installer trust the authority.
    assert (variable.replace("npm_config_", "")).encode() in refused.stderr
    said(user.corral("run", word, env={**env, variable: str(scratch / "ca.pem")}))


@ONE_USER
@INSTALLERS
@pytest.mark.parametrize("encrypted", ["127.0.0.2"], indirect=True)
def test_a_certificate_for_another_host_is_named(user, env, encrypted, tools, scratch, installer):
    env = use(encrypted, choose(installer, env, tools))
    put_certificates(user, AUTHORITY, scratch / "ca.pem")
    trusted = dict.fromkeys(
        ["npm_config_cafile", "SSL_CERT_FILE", "PIP_CERT"], str(scratch / "ca.pem")
    )
    word = "npm:server" if installer == "npm" else "pypi:server"
    done = user.corral("run", word, env={**env, **trusted})
    assert done.returncode == REFUSED
    assert b"the registry's certificate is for another host name" in done.stderr
