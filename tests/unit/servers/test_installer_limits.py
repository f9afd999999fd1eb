"""Test the resource limits of installers. They must be high enough for a large package, and never
above the user's ceilings.
"""

import json

import pytest

from corral.policy.manifest import parse_json
from corral.policy.merge import merge
from corral.policy.model import GIB, MIB, Source
from corral.policy.user_config import load
from corral.record import replace
from corral.servers.packages import sandboxed_install
from corral.servers.packages.sandboxed_install import LIMITS, lower_limits

MINUTE = 60 * 1000
CEILINGS = {
    "none": ("", (4 * GIB, 4 * GIB, 512, 15 * MINUTE)),
    "higher": (
        'memory = "8G"\ndisk = "6G"\npids = 1000\ntimeout = "2h"',
        (4 * GIB, 4 * GIB, 512, 15 * MINUTE),
    ),
    "between the default and what is enough": (
        'memory = "2G"\ndisk = "3G"\npids = 300\ntimeout = "5m"',
        (2 * GIB, 3 * GIB, 300, 5 * MINUTE),
    ),
    "below the default": (
        'memory = "512M"\ndisk = 100000001\npids = 20\ntimeout = "50ms"',
        (512 * MIB, 100_000_001, 20, 50),
    ),
    "unlimited": ('memory = "none"\ntimeout = "none"', (4 * GIB, 4 * GIB, 512, 15 * MINUTE)),
}


@pytest.fixture
def write_ceilings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("APPDATA", str(tmp_path))

    def write(text):
        place = tmp_path / "corral"
        place.mkdir(mode=0o700)
        (place / "config.toml").write_text(f"[ceilings]\n{text}\n")

    return write


@pytest.mark.parametrize("kind", CEILINGS)
def test_an_installer_gets_its_fixed_limits_lowered_to_the_users_ceilings(
    kind, write_ceilings, tmp_path
):
    text, wanted = CEILINGS[kind]
    write_ceilings(text)
    manifest = parse_json(
        json.dumps({"version": 1, "limits": lower_limits(LIMITS)}), "the installer"
    )
    home = str(tmp_path)
    policy = merge([Source(manifest=manifest)], ceilings=load().ceilings, home=home, cwd=home)
    limits = policy.limits
    assert (limits.memory, limits.disk, limits.pids, limits.timeout) == wanted


def test_an_interpreter_has_little_time_even_with_a_high_ceiling(write_ceilings):
    write_ceilings('timeout = "2h"')
    asked = replace(LIMITS, timeout=sandboxed_install.MAX_ANSWER_MS)
    assert lower_limits(asked)["timeout"] == "30s"
