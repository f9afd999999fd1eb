"""Test NFS, 9p, quotas and case-insensitive directories in virtual machines, because the host's kernel may lack them."""

from __future__ import annotations

import pytest

import file_system_hosts
import rigs
from file_system_trial import USED_UP
from file_systems import FILE_SYSTEMS

pytestmark = [pytest.mark.rig("filesystems", "qemu", "uml"), pytest.mark.timeout(3300)]
NAMES = [name for name, one in FILE_SYSTEMS.items() if one.machine]


@pytest.mark.parametrize("name", NAMES)
def test_corral_works_or_refuses_on_every_emulated_file_system(name):
    found = rigs.once(f"file-system-{name}", lambda: file_system_hosts.boot(name))
    assert [one for one in found if one["result"] == "fails"] == []
    refused = [one for one in found if one["result"] == "refuses"]
    places = [(one["user"], one["tier"], one["place"]) for one in refused]
    file_system = FILE_SYSTEMS[name]
    closed = ["read grant", "write grant"] if file_system.closed_to_root else []
    closed += ["HOME", "store"] if file_system.behind else []
    quota = [("ordinary", "walled", USED_UP)] if file_system.quota else []
    assert places == [*(("root", "walled", place) for place in closed), *quota]
