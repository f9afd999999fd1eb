"""Provide fixtures for tests that install servers: a registry, package managers, an environment."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

import rigs
from corral.servers.store.tree import remove_tree
from registries import Registries


@pytest.fixture
def registry() -> Iterator[Registries]:
    made = Registries()
    yield made
    made.close()


@pytest.fixture
def npm() -> None:
    rigs.need("node")


@pytest.fixture(scope="session")
def tools(package) -> pathlib.Path:
    """Return a directory with a copy of uv that every user can execute."""
    uv = pytest.importorskip("uv", reason="missing: uv, of the development tools")
    place = package.parent / "tools"
    place.mkdir(mode=0o755)
    shutil.copy(uv.find_uv_bin(), place / "uv")
    (place / "uv").chmod(0o755)
    return place


@pytest.fixture
def env(user, scratch, registry) -> Iterator[dict[str, str]]:
    """Yield environment variables for the user: the test's registry, an empty store and an empty
    configuration.
    """
    cache, config = scratch / "cache", scratch / "config"
    (cache / "corral").mkdir(parents=True)
    (config / "corral").mkdir(parents=True)
    findings = user.home / ".cache" / "corral" / "findings"
    if findings.is_dir():  # copy the cached findings, because probing the host again is slow
        shutil.copytree(findings, cache / "corral" / "findings")
    for path in [scratch, *scratch.rglob("*")]:
        os.chown(path, user.uid, user.uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    yield user.environment(
        XDG_CACHE_HOME=str(cache),
        XDG_CONFIG_HOME=str(config),
        npm_config_registry=f"{registry.url}/",
        npm_config_userconfig=str(scratch / ".npmrc"),
        UV_DEFAULT_INDEX=f"{registry.url}/simple",
        CORRAL_REGISTRY=registry.url,
    )
    # a plain rmtree would fail, because the store's directories are read-only
    remove_tree(str(cache))
