"""Test how corral finds out which of a target's paths are on network file systems. The search must
be fast and use little memory.
"""

import os
import sys
import tracemalloc

import pytest

from corral.learn.remote_paths import RemotePaths

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses Linux paths")


def test_paths_with_many_parts_take_few_lookups_and_little_memory(tmp_path, monkeypatch):
    """Look up paths of 2,000 parts each. A target may send a thousand such paths, because all its
    paths together may take up 4 MiB.
    """
    looked, read = [], os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: [looked.append(path), read(path)][1])
    remote = RemotePaths({"/": "disk", str(tmp_path / "net"): "network"}, ["/root"])
    tracemalloc.start()
    found = [remote.contains(f"/none{at}" + "/a" * 2000) for at in range(20)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not any(found)
    assert len(looked) == 20  # no part below a missing name is looked up
    assert most < 16 << 20


def test_paths_and_links_to_network_file_systems_are_found(tmp_path):
    """Check that paths on network file systems are found, and that other paths are not."""
    top = os.path.realpath(tmp_path)
    os.symlink(f"{top}/net/host", f"{top}/link")
    (tmp_path / "deep").mkdir()
    kinds = {"/": "disk", f"{top}/net": "network", f"{top}/net/inner": "disk"}
    remote = RemotePaths(kinds, ["/root"])
    for path in (
        "net",
        "net/x",
        "link",
        "link/x",
        "deep/../net/x",
        "none/../net/x",
        "none/a/../../link",
    ):
        assert remote.contains(f"{top}/{path}"), path
    for path in ("deep", "none/net", "network", "none/a/b"):
        assert not remote.contains(f"{top}/{path}"), path
    root = RemotePaths({"/": "network", top: "disk"}, [top])
    first = "/" + top.split("/")[1]
    assert root.contains("/none/x")
    # `top` is on a disk, and `/` is on the network. Unless `top` is directly below `/`, a lookup of
    # `top/deep` first uses the directory `first`, which is on the network.
    assert root.contains(f"{top}/deep") is (first != top)
    assert not RemotePaths(kinds, [f"{top}/net/own"]).contains(f"{top}/net/x")
