"""Run this folder's attacks in a bundle that `corral export oci` wrote, in a real runc.

Each attack is blocked as in a run of corral, or docs/export.md lists it as not enforced.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
from attempts import PRELUDE, inside, outside
from test_exec import CHILDREN
from test_filesystem import OPEN_SECRETS, WRITES
from test_kernel import DENIED, NESTED
from test_network import FAMILIES

pytestmark = pytest.mark.rig("runc")

# The attack by exec is left out. The runtime itself executes the target under the filter, so a bundle cannot deny
# exec, as docs/export.md says.
CODES = {"DENIED": DENIED, "NESTED": NESTED, "FAMILIES": FAMILIES, "CHILDREN": CHILDREN}


@pytest.fixture
def scratch(user):
    """Create a directory that a bundle's target can reach. That target is never root."""
    path = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="corral-export-"))
    path.chmod(0o755)
    os.chown(path, user.owner, user.owner)
    yield path
    shutil.rmtree(path)


def in_bundle(user, scratch, code, *arguments, flags=()):
    bundle = scratch / "bundle"
    script = f"import json, os, sys\nanswer = None\n{PRELUDE}{code}\nprint(json.dumps(answer))"
    words = ("-o", str(bundle), *flags, "--", "/usr/bin/python3", "-c", script, *arguments)
    done = user.corral("export", "oci", *words)
    assert done.returncode == 0, done.stderr.decode()
    name = f"corral-attack-{os.getpid()}-{user.name}"
    argv = ["runc", "--root", str(scratch / "runc"), "run", "-b", str(bundle), name]
    process = user.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err.decode()
    return json.loads(out.decode().splitlines()[-1])


@pytest.mark.parametrize("name", CODES)
def test_a_bundle_blocks_the_same_attacks_as_a_run(user, scratch, name):
    free = outside(user, CODES[name])
    walled = inside(user, CODES[name])
    assert set(free.values()) != set(walled.values())  # the control: the answer outside differs
    seen = in_bundle(user, scratch, CODES[name])
    assert seen.keys() == walled.keys()
    assert not [one for one, said in seen.items() if said == "done" and walled[one] != "done"]


def test_ungranted_files_are_out_of_reach(user, scratch):
    """The control: outside, and in a write grant, the same acts succeed."""
    secret, granted = scratch / "key.txt", scratch / "project"
    granted.mkdir()
    secret.write_text("key")
    os.chown(secret, user.owner, user.owner)
    os.chown(granted, user.owner, user.owner)
    if user.uid == 0:  # the target of root's bundle is not root, so it cannot use root's files
        flags, places = (), ("/usr",)
    else:
        flags, places = ("--write", str(granted)), (str(granted), "/usr")
    assert outside(user, OPEN_SECRETS, str(secret)) == {str(secret): "done"}
    seen = in_bundle(user, scratch, OPEN_SECRETS, str(secret), flags=flags)
    assert seen == {str(secret): "ENOENT"}
    shutil.rmtree(scratch / "bundle")
    written = in_bundle(user, scratch, WRITES, *places, flags=flags)
    assert set(written["/usr"].values()) <= {"EROFS", "EPERM", "EACCES"}
    if user.uid:
        assert written[str(granted)]["create"] == "done"
