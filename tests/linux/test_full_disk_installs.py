"""Install packages on a disk with too little room. The refusal must name the reason, and the
attempt must leave nothing behind.
"""

from __future__ import annotations

import os

import pytest
from test_packages import ONE_USER, REFUSED, publish, publish_python, said

from file_systems import FileSystem, mounted

pytestmark = [
    ONE_USER,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems"),
]
DISK = FileSystem("", "mount -t tmpfs -o size=64m tmpfs /mnt")
FILL = "rm -f fill; df --output=avail -k /mnt | tail -1 | (read free; head -c $((free - {0}))k /dev/zero >fill)"
KIBIBYTES = (0, 16, 64, 1024)
"""Amounts of free space that are enough for nothing, for some directories, for some of the
packages, or for all packages but not for the files that the installer keeps.
"""


def check_installs(there, user, env, registry, word: str) -> None:
    """Install a package with too little room, and then, as a sanity check, with enough room."""
    there.shell(f"mkdir -m 700 cache && chown {user.uid}:{user.uid} cache")
    person, env = there.resident(user), {**env, "XDG_CACHE_HOME": "/mnt/cache"}
    assert person.run("/bin/true", env=env).returncode == 0
    refused = 0
    for room in KIBIBYTES:
        there.shell(FILL.format(room))
        done = person.corral("run", word, env=env)
        if done.returncode:
            refused += 1
            check_refusal(done)
            assert there.shell("find cache -path '*/corral-staging/*'") == "", room
    assert refused >= 2
    there.shell("rm fill")
    assert said(person.corral("run", word, env=env))["dep"] == "dep 2"


def check_refusal(done) -> None:
    words = done.stderr.decode()
    assert done.returncode == REFUSED, words
    assert "no space left" in words.lower(), words
    assert "\nhint: free space on " in words, words
    assert "Traceback" not in words


def test_npm_packages_are_not_installed_on_a_full_disk(user, env, registry, npm):
    registry.publish_npm("dep", "2.0.0", {"index.js": "module.exports = 'dep 2'"})
    publish(registry, dependencies={"dep": "^2.0.0"})
    with mounted(DISK) as there:
        check_installs(there, user, env, registry, "npm:server@1.0.0")


def test_pypi_packages_are_not_installed_on_a_full_disk(user, env, registry, tools):
    publish_python(registry)
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    with mounted(DISK) as there:
        check_installs(there, user, env, registry, "pypi:my-server==1.0.0")
