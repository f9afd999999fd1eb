"""Test how lines of mountinfo are parsed, and how corral finds the device that contains a path."""

import sys

import pytest

from corral.paths.mounts import on_disk, parse_mount, read_mounts

LINE = "36 35 98:0 /a\\040b /mnt/\\134040\\011\\012 rw,noatime master:1 - ext3 /dev/root rw"


def test_escaped_spaces_and_backslashes_are_read():
    assert parse_mount(LINE) == ("/mnt/\\040\t\n", "98:0", "/a b")


def test_the_innermost_mount_determines_the_path_on_the_disk():
    mounts = {"/": ("8:1", "/"), "/home": ("8:2", "/"), "/srv/me": ("8:2", "/me")}
    assert on_disk("/home/me/x", mounts) == on_disk("/srv/me/x", mounts) == ("8:2", "/me/x")
    assert on_disk("/srv/x", mounts) == ("8:1", "/srv/x")
    assert on_disk("/home/me", {})[0] == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/mountinfo")
def test_this_machine_has_a_root_mount():
    assert read_mounts()["/"][0]
