"""Test which links in the paths of grants are made in the sandbox."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from corral.policy.path_grants import make_grant
from corral.record import replace

if sys.platform == "linux":
    from corral.platforms.linux import tier_namespaces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the namespace tier is for Linux")


@pytest.fixture
def links(tmp_path):
    """Return a function that finds the links for grants of paths below `tmp_path`."""
    real = tmp_path / "var" / "home"
    (real / "me" / "notes" / "inner").mkdir(parents=True)
    (tmp_path / "home").symlink_to("var/home")

    def find(*written, shown=(), made=()):
        grants = [
            replace(make_grant("read", str(tmp_path / name)), written=str(tmp_path / name))
            for name in written
        ]
        paths = [[str(tmp_path / name) for name in names] for names in (shown, (*shown, *made))]
        found = tier_namespaces._grant_links(SimpleNamespace(grants=grants), *paths)
        return {
            os.path.relpath(link, tmp_path): os.path.relpath(end, tmp_path) for link, end in found
        }

    return find


def test_a_link_above_a_directory_of_the_sandbox_is_replaced_by_a_link_to_the_grant(links):
    """Let `/home` be a link, as on image-based systems. If the sandbox has its own `/home/user`,
    its `/home` must be a directory. Only the granted path in it can then be a link.
    """
    grants = ("home/me/notes", "home/me/notes/inner")
    assert links(*grants) == {"home": "var/home"}
    assert links(*grants, made=["home/user"]) == {"home/me/notes": "var/home/me/notes"}
    assert links("home/me", made=["home/me/own"]) == {}
    assert links("home/me", made=["home/user"], shown=["home/me"]) == {}


def test_a_link_in_the_place_of_a_file_of_the_sandbox_is_not_made(links, tmp_path):
    """Let `/etc/hosts` be a link to a granted file. corral needs this path for its own file."""
    (tmp_path / "hosts").symlink_to("var/home/me/notes")
    assert links("hosts") == {"hosts": "var/home/me/notes"}
    assert links("hosts", made=["hosts"]) == {}
