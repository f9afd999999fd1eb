"""Test that corral limits the byte rate of each disk, and that it reports no limit for a path that
is not on a disk.
"""

from __future__ import annotations

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("needs a Linux kernel", allow_module_level=True)

from corral.platforms.linux import block_devices, options
from corral.policy.model import Grant, Limits, Policy


def policy(*paths: str, io: int | None = 1 << 20) -> Policy:
    grants = tuple(
        Grant(path=path, access="read", device=1, inode=1, directory=True, owner=0, group=0)
        for path in paths
    )
    return Policy(limits=Limits(io=io), grants=grants)


@pytest.fixture
def known(monkeypatch):
    """Replace the lookup of this host's disks with a table that maps paths to disks. Return the
    table, so that a test can fill it.
    """
    found: dict[str, str] = {}
    monkeypatch.setattr(block_devices, "disk_of", lambda path: found.get(path, ""))
    return found


def test_io_cannot_be_limited_for_paths_that_are_not_on_a_disk(known):
    assert options.chains(policy("/data"))["io"] == ()
    assert options.chains(policy(io=None))["io"] == ()


def test_every_disk_is_limited_once(known):
    known.update({"/usr": "8:0", "/data": "259:1", "/more": "259:1"})
    assert block_devices.find_disks(policy("/data", "/more")) == (("8:0", "259:1"), ())
    [option] = options.chains(policy("/data", "/more"))["io"]
    assert (option.mechanism, option.needs, option.note) == ("cgroup io", ("cgroup_io",), "")


def test_paths_without_a_disk_are_named(known):
    known["/data"] = "8:0"
    [option] = options.chains(policy("/data"))["io"]
    assert "/usr" in option.note
    assert "/data" not in option.note


def test_disk_of_returns_nothing_for_paths_that_are_not_on_a_disk():
    assert block_devices.disk_of("/proc") == ""
    assert block_devices.disk_of("/no/such/path") == ""
