"""Test corral's client for a minifilter, a driver that asks corral about a target's file accesses:
a missing driver is reported, and each drive's device is found.
"""

from __future__ import annotations

import os

import pytest

from corral.abi import win32, win32_filter
from corral.platforms.windows.mechanisms import minifilter


def test_a_missing_driver_is_reported():
    before = win32.open_handles()
    with pytest.raises(minifilter.AbsentError) as caught:
        minifilter.connect(minifilter.Checks())
    assert str(caught.value)
    assert minifilter.probe().status == "absent"
    assert win32.open_handles() == before


def test_the_device_of_a_drive_is_found():
    device = win32_filter.query_dos_device("C:")
    assert device.lower().startswith(("\\device\\", "\\??\\"))
    with pytest.raises(OSError, match="QueryDosDeviceW"):
        win32_filter.query_dos_device("no such drive")


@pytest.mark.real_windows(reason="its drives are directories of the host")
def test_grants_become_device_paths(tmp_path):
    (root,) = minifilter.device_roots([str(tmp_path)], win32_filter.query_dos_device)
    assert root.startswith("\\DEVICE\\HARDDISKVOLUME")
    assert root.endswith(os.path.basename(tmp_path).upper())
    name = win32_filter.query_dos_device(str(tmp_path)[:2]) + str(tmp_path)[2:] + "\\x"
    assert minifilter.is_within(name, [root])
    assert not minifilter.is_within(name, [root + "X"])
