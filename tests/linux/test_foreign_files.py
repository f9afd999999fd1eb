"""Attack the files that corral keeps, such as denials and compiled filters, as another local user.

The victim may be root, if root runs corral with the HOME of an ordinary user who has planted files
there.
"""

from __future__ import annotations

import marshal
import os
import struct

import pytest
from test_grant import configure, kept_files, run
from test_wrap import at, entries

from corral.abi.private_directory import checksum
from users import ORDINARY, make_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run these tests")
RET_ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)


def forge(path) -> None:
    """Replace the BPF programs in a file of compiled filters with programs that allow everything,
    and give the file a correct checksum.
    """
    key, *programs = marshal.loads(path.read_bytes()[8:])
    body = marshal.dumps((key, *[RET_ALLOW] * len(programs)))
    path.write_bytes(checksum(body).to_bytes(8, "little") + body)


def give(path, uid: int) -> None:
    for directory, _, names in os.walk(path):
        for one in (directory, *(os.path.join(directory, name) for name in names)):
            os.chown(one, uid, uid, follow_symlinks=False)


@pytest.mark.parametrize("owner", [0, ORDINARY])
def test_a_filter_that_another_user_wrote_is_not_loaded(user, scratch, owner):
    """Plant a filter that allows everything. corral must not load it if another user owns it.

    Sanity check: if root owns the file, corral loads it. It then notices inside the sandbox that
    the filter denies nothing, and refuses the run.
    """
    if user.uid:
        pytest.skip("the attack is on root")
    env = user.environment(HOME=str(scratch))
    words = ("run", "--allow-subprocess", "--", "/bin/echo", "ran")
    assert user.corral(*words, env=env).stdout == b"ran\n"
    filters = list((scratch / ".cache/corral/filters").iterdir())
    assert filters
    for path in filters:
        forge(path)
    give(scratch, owner)
    done = user.corral(*words, env=env)
    if owner == 0:
        assert done.returncode == 125, done.stderr
        assert b"seccomp" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


@pytest.fixture
def desk(ordinary):
    yield from at(ordinary)


@pytest.fixture
def root(package):
    return make_user("root", package, "walled")


def test_denials_that_another_user_wrote_are_not_granted(desk, root):
    """Plant a denial as an ordinary user, and run `grant` as root with this user's HOME. `grant`
    must not ask about the denial.
    """
    path = configure(desk, "cursor")
    run(desk, path)
    assert kept_files(desk)
    assert "api.x.com" in desk.does("why", "notes")  # Sanity check: the user sees the denial
    done = root.corral("why", "--json", "notes", env=desk.environment())
    assert b"api.x.com" not in done.stdout, done.stderr
    before = path.read_bytes()
    done = root.corral("grant", "notes", env=desk.environment())
    assert (done.returncode, path.read_bytes()) == (125, before)
    assert b"no denial is recorded for notes" in done.stderr
    assert b"api.x.com" not in done.stderr


def test_another_user_can_neither_read_nor_change_kept_files(desk, root):
    """Give the stored denials and filters to root, and try to read and change them as an ordinary
    user. Sanity check: root can do both.
    """
    path = configure(desk, "cursor")
    run(desk, path)
    places = [desk.home / ".local/state/corral/denials", desk.home / ".cache/corral/filters"]
    assert all(any(place.rglob("*")) for place in places)
    give(desk.home / ".local/state/corral", 0)
    give(desk.home / ".cache/corral", 0)
    code = "import os; answer = []\nfor path in sys.argv[1:]:\n"
    code += "    for act in (os.listdir, lambda path: os.mkdir(path + '/x')):\n"
    code += "        try: answer.append(bool(act(path)) or 'made')\n"
    code += "        except PermissionError: answer.append('denied')"
    words = list(map(str, places))
    assert desk.user.outside(code, *words) == ["denied"] * 4
    assert root.outside(code, *words) == [True, "made"] * 2


def listing(top) -> dict:
    found = {one: one.lstat() for one in top.rglob("*")}
    return {one: (seen.st_uid, seen.st_ino, seen.st_ctime_ns) for one, seen in found.items()}


def test_root_does_not_change_a_users_files(desk, root):
    """Run `grant` as root with a user's HOME, where the user may have planted symlinks. corral must
    not change files there, and its error must name their owner.
    """
    path = configure(desk, "cursor")
    words = ("grant", "notes", "--allow-net", "api.x.com")
    before = listing(desk.home)
    done = root.corral(*words, env=desk.environment())
    assert done.returncode == 125, done.stdout
    assert f"belongs to user {ORDINARY}".encode() in done.stderr
    assert listing(desk.home) == before
    desk.does(*words)  # Sanity check: if the owner of the files runs the command, it succeeds
    assert "api.x.com" in entries(path)["notes"]["args"]
