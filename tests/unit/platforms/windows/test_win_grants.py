"""Test which directory trees can be granted to an AppContainer. Most tests describe a tree as a
list of files and do not create it.
"""

import contextlib
import os
import re
import stat
import struct
import types

import pytest

from corral.abi.win32_security import parse_sid
from corral.errors import PolicyError
from corral.paths import windows as paths
from corral.platforms.windows.files import access_list, granted_tree
from corral.platforms.windows.files.granted_tree import Node, Tree
from corral.platforms.windows.mechanisms import path_grants
from corral.policy.model import Grant, Policy, Windows

KNOWN = paths.known_directories({"SystemRoot": "C:\\Windows"}, "C:\\Users\\Ann")
TOP = Node(name="", directory=True)


def grant(path, access="read", directory=True):
    return Grant(
        path=path, access=access, device=7, inode=11, directory=directory, owner=0, group=0
    )


def tree(*nodes):
    return Tree(nodes=(TOP, *nodes))


def file(name, **facts):
    return Node(name=name, directory=False, **facts)


def plan(*pairs, **windows):
    policy = Policy(grants=tuple(one for one, _ in pairs), windows=Windows(**windows))
    return path_grants.plan(
        policy, {one.path: seen for one, seen in pairs}, known=KNOWN, directory="C:\\journal"
    )


def refusal(*pairs):
    with pytest.raises(PolicyError) as caught:
        plan(*pairs)
    assert caught.value.hint
    return caught.value.message


def test_a_plain_tree_is_granted():
    step = plan(
        (grant("D:\\work", "write"), tree(file("a.txt"), file("b.txt"))),
        (grant("D:\\notes"), tree()),
    )
    assert [root.path for root in step.roots] == ["D:\\work", "D:\\notes"]
    assert [root.access for root in step.roots] == ["write", "read"]
    assert len(set(step.sids)) == 2
    assert all(sid in step.describe() for sid in step.sids)
    assert (step.roots[0].volume, step.roots[0].file) == (7, 11)
    assert not step.keep


@pytest.mark.parametrize("root_changed", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_each_run_restricts_secrets_again_even_if_their_grant_was_kept(
    monkeypatch, kept, root_changed
):
    """Check the access list entries of secrets, of hard links, and of files that other programs
    run. Every run must set these entries again, even if an earlier run has set and kept the entries
    of this grant, because such a file may have been created since then.
    """
    nodes = (
        TOP, file("a.txt"), file(".env"), file("linked", links=2), file("run.bat"), file("z.txt"),
    )  # fmt: skip
    less = path_grants.Exceptions(
        closed=frozenset({".env"}), secret=frozenset({".env"}), read_only=frozenset({"run.bat"})
    )
    done, checked = [], []

    def walk(_path, _closed):
        yield from ((node, types.SimpleNamespace(value=node.name)) for node in nodes)

    def set_entries(_path, name, _sid, entries):
        done.append((name, bool(entries)))
        return bool(name) or root_changed

    monkeypatch.setattr(granted_tree, "walk", walk)
    monkeypatch.setattr(granted_tree, "has_identity", lambda *_: True)
    monkeypatch.setattr(granted_tree, "set_entries", set_entries)
    monkeypatch.setattr(granted_tree, "check_closed", lambda _path, name: checked.append(name))
    [root] = plan((grant("D:\\work", "write"), tree())).roots
    path_grants.set_entries(root, less, kept=kept)
    special = [("", True), (".env", False), ("linked", True), ("run.bat", True)]
    every = [*special[:1], ("a.txt", True), *special[1:], ("z.txt", True)]
    assert done == (special if kept and not root_changed else every)
    assert checked == [".env"]


def test_the_plan_can_keep_the_access_entries_of_a_grant():
    step = plan((grant("D:\\work"), tree()), keep_grants=True)
    assert step.keep
    assert "kept" in step.describe()


def entries(step, name, **facts):
    """Return the target's rights on an object in the plan's first root, and the rights that new
    objects in it inherit, as access masks.
    """
    node = Node(name=name, directory=facts.pop("directory", False), **facts)
    made = step.exceptions[0].entries(step.roots[0], node)
    masks = [(entry[1], int.from_bytes(entry[4:8], "little")) for entry in made]
    own = next((mask for flags, mask in masks if not flags & access_list.INHERIT_ONLY), 0)
    return own, masks[-1][1] if masks and node.directory else 0


READ = access_list.RIGHTS["read"]
WRITE = access_list.RIGHTS["write"]


def test_trees_with_links_are_refused():
    assert "D:\\work\\link" in refusal((grant("D:\\work"), tree(file("link", reparse=True))))


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_file_with_several_names_can_only_be_read(access):
    """Check that the target cannot write to a hard link, because another name of the same file may
    be outside the granted directory. uv and pnpm create such hard links.
    """
    step = plan((grant("D:\\work", access), tree(file("twin", links=2))))
    assert entries(step, "twin", links=2) == (READ, 0)
    assert entries(step, "plain")[0] == (READ if access == "read" else WRITE | access_list.DELETE)


def test_a_junction_as_a_root_is_refused():
    top = Node(name="", directory=True, reparse=True)
    assert "D:\\work is a link" in refusal((grant("D:\\work"), Tree(nodes=(top,))))


def test_many_problems_are_counted_and_not_listed():
    nodes = [file(f"link{number}", reparse=True) for number in range(100)]
    text = refusal((grant("D:\\work"), tree(*nodes)))
    assert "and 95 more" in text
    assert text.count("\\link") == 5


def test_a_tree_with_too_many_entries_is_refused():
    assert "more than 20000" in refusal((grant("D:\\work"), Tree(nodes=(TOP,), whole=False)))


def test_system_and_profile_directories_are_refused():
    text = refusal(
        (grant("C:\\Windows\\x"), tree()), (grant("C:\\Users"), tree()), (grant("D:\\"), tree())
    )
    assert "C:\\Windows\\x: it belongs to Windows" in text
    assert "C:\\Users: it contains your profile" in text
    assert "D:\\: it is a whole drive" in text


def test_a_read_grant_inside_a_write_grant_is_read_only():
    outer, inner = (grant("D:\\work", "write"), tree()), (grant("d:\\WORK\\docs"), tree())
    step = plan(outer, inner)
    assert entries(step, "docs", directory=True) == (READ, READ)
    assert entries(step, "DOCS\\sub\\file")[0] == READ
    # Sanity check: a directory with a similar name is writable.
    assert entries(step, "documents")[0] == WRITE | access_list.DELETE
    other = plan((grant("D:\\work"), tree()), (grant("D:\\work\\docs", "write"), tree()))
    # Only the outer grant's entries are checked here. The write grant adds its own entries to
    # `docs`.
    assert entries(other, "docs", directory=True) == (READ, READ)


def test_socket_grants_are_refused():
    assert "unix sockets" in refusal((grant("D:\\s.sock", "socket", directory=False), tree()))


@pytest.mark.parametrize(
    "name", [".ssh", ".SSH", "a\\b\\c\\.aws", ".env", "app\\.env.local", "x\\id_ed25519", ".npmrc"]
)
@pytest.mark.parametrize("access", ["read", "write"])
def test_secrets_in_a_grant_get_no_access_entry(name, access):
    assert granted_tree.is_secret(name)
    step = plan((grant("D:\\work", access), Tree(nodes=(TOP,), closed=(name,))))
    assert entries(step, name) == (0, 0)
    above = name.rpartition("\\")[0]
    # The target must not rename the directory above a secret. Otherwise it could put another
    # directory there, to which the exception for the secret would not apply.
    if access == "write" and above:
        assert not entries(step, above, directory=True)[0] & access_list.DELETE
        assert entries(step, above, directory=True)[1] & access_list.DELETE
    assert name in step.describe()


@pytest.mark.parametrize(
    "name", [".git\\hooks", "sub\\.git\\config", ".vscode", "app\\.mcp.json", ".husky"]
)
def test_self_starting_files_are_read_only(name):
    step = plan((grant("D:\\work", "write"), tree(file(name))))
    assert entries(step, name) == (READ, 0)
    assert entries(step, f"{name}\\below", directory=True) == (READ, READ)
    assert entries(step, ".git\\objects")[0] == WRITE | access_list.DELETE  # git can still commit
    if "\\" in name:
        assert not entries(step, name.rpartition("\\")[0], directory=True)[0] & access_list.DELETE
    assert entries(plan((grant("D:\\work"), tree(file(name)))), name)[0] == READ


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (".config", "gcloud"),
        (".Config", "GH"),
        (".cargo", "credentials.toml"),
        ("AppData\\Local\\Google", "Chrome"),
        ("AppData\\Roaming\\Code", "User"),
        ("AppData\\Roaming\\Microsoft\\Windows", "PowerShell"),
    ],
)
def test_secrets_in_the_users_profile_get_no_access_entry(place, name):
    assert granted_tree.is_secret(name, place)
    # Sanity check: outside the user's profile, a file with this name is not secret.
    assert not granted_tree.is_secret(name)


def test_files_that_start_at_logon_are_read_only():
    root = "C:\\Users\\Ann\\AppData\\Roaming\\Microsoft\\Windows"
    step = plan((grant(root, "write"), tree(file("Start Menu"))))
    assert entries(step, "Start Menu")[0] == READ
    # Sanity check: a file with a similar name is writable.
    assert entries(step, "Start Menus")[0] == WRITE | access_list.DELETE


def test_missing_self_starting_files_are_watched():
    """Check that the plan lists missing files that other programs would run. corral watches them,
    because a missing file cannot be made read-only.
    """
    documents = "C:\\Users\\Ann\\Documents"
    seen = tree(Node(name="sub", directory=True))
    step = plan((grant(documents, "write"), seen), (grant("D:\\read"), seen))
    assert f"{documents}\\powershell" in step.watched
    assert f"{documents}\\.vscode" in step.watched
    assert f"{documents}\\.git\\hooks" in step.watched
    assert not any(path.startswith("D:\\read") for path in step.watched)
    assert plan((grant("D:\\f", "write", directory=False), tree())).watched == ()


@pytest.mark.parametrize(
    "name", [".env.example", "environment", "git\\hooks", ".github\\workflows", "ssh", "src\\hooks"]
)
def test_similar_names_are_ordinary_files(name):
    assert not granted_tree.is_secret(name)
    assert not granted_tree.is_starting(name)


def test_a_secret_that_is_granted_by_name_gets_an_access_entry():
    outer = (grant("D:\\work"), Tree(nodes=(TOP,), closed=(".env",)))
    step = plan(outer, (grant("D:\\work\\.env", directory=False), tree()))
    assert entries(step, ".env") == (0, 0)
    assert step.exceptions[1].entries(step.roots[1], file(""))


def test_a_git_checkout_with_an_environment_and_packages_is_granted(tmp_path):
    """Check a typical checkout: the .env file gets no entry, and hard links and hooks are
    read-only.
    """
    for name in (".git/hooks", ".git/objects", ".venv/Lib", "node_modules/x", "src"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".git/config", ".env", "src/main.js", "node_modules/x/index.js"):
        (tmp_path / name).write_text("")
    os.link(tmp_path / "src" / "main.js", tmp_path / ".venv" / "Lib" / "main.js")
    for access in ("read", "write"):
        policy = Policy(grants=(grant(str(tmp_path), access),))
        (seen,) = path_grants.read_trees(policy, home="C:\\Users\\Ann").values()
        assert seen.closed == (".env",)
        step = plan((grant("D:\\work", access), seen))
        assert entries(step, "src\\main.js", links=2)[0] == READ
    assert step.exceptions[0].read_only == {".git\\hooks", ".git\\config"}


def test_a_tree_in_the_store_is_not_listed_again(tmp_path, monkeypatch):
    (tmp_path / "node_modules").mkdir()
    for name in "abcd":
        (tmp_path / "node_modules" / name).write_text("")
    monkeypatch.setattr(granted_tree, "MAX_ENTRIES", 3)
    monkeypatch.setattr(path_grants.windows, "is_inside", lambda path, top: top == "copied")

    def seen(access, *copied):
        policy = Policy(grants=(grant(str(tmp_path), access),))
        (found,) = path_grants.read_trees(policy, home="C:\\Users\\Ann", copied=copied).values()
        return found.whole, found.closed

    assert seen("read", "copied") == (True, ("node_modules",))
    assert seen("read", "other") == (False, ())
    assert seen("write", "copied") == (False, ())  # a writable path is not copied


def test_objects_of_other_users_in_a_read_grant_are_skipped_and_named(tmp_path):
    """Check that an elevated tool's files get no entries, because the current user may not change
    the access lists of such files. A warning must name these files.
    """
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("")
    (tmp_path / "own").write_text("")
    found = granted_tree.read_tree(str(tmp_path), is_foreign=lambda path: path.endswith("theirs"))
    assert (found.foreign, {node.name for node in found.nodes}) == (("theirs",), {"", "own"})
    step = plan((grant("D:\\work"), found))
    assert entries(step, "theirs", directory=True) == (0, 0)
    (warning,) = step.warnings()
    assert "D:\\work\\theirs is closed" in warning
    assert plan((grant("D:\\work"), tree())).warnings() == ()


@pytest.mark.parametrize(("answer", "foreign"), [(None, False), (PermissionError(13, "no"), True)])
def test_an_object_that_cannot_be_opened_is_skipped(monkeypatch, answer, foreign):
    def open_itself(path, *, access):
        assert access & granted_tree.win32_files.WRITE_DAC
        if answer:
            raise answer
        return types.SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(granted_tree.win32_files, "open_itself", open_itself)
    assert granted_tree.is_foreign("D:\\x") == foreign


@pytest.mark.links
def test_links_and_hard_links_of_a_directory_on_disk_are_listed(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text("x")
    (tmp_path / "sub" / "link").symlink_to("/")
    os.link(tmp_path / "sub" / "file", tmp_path / "twin")
    found = granted_tree.read_tree(str(tmp_path))
    assert found.whole
    seen = {node.name: (node.directory, node.reparse, node.links) for node in found.nodes}
    assert seen == {
        "": (True, False, 1),
        "sub": (True, False, 1),
        "sub\\file": (False, False, 2),
        "sub\\link": (False, True, 1),
        "twin": (False, False, 2),
    }


def test_a_tree_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(granted_tree, "MAX_ENTRIES", 3)
    for name in "ab":
        (tmp_path / name).write_text("")
    assert granted_tree.read_tree(str(tmp_path)).whole
    (tmp_path / "c").write_text("")
    assert not granted_tree.read_tree(str(tmp_path)).whole


@pytest.mark.parametrize(
    ("access", "seen", "told"),
    [
        ("write", tree(file(".git\\config")), "D:\\work\\.git\\config is run by other programs"),
        ("read", tree(file(".git\\config")), ""),
        ("read", Tree(nodes=(TOP,), closed=(".env",)), "D:\\work\\.env is a secret"),
        ("write", Tree(nodes=(TOP,), closed=(".env",)), "D:\\work\\.env is a secret"),
        ("read", Tree(nodes=(TOP,), closed=("node_modules",)), ""),
        ("write", tree(file("main.py")), ""),
    ],
)
def test_strict_grants_refuse_instead_of_giving_less_access(access, seen, told):
    granted = (grant("D:\\work", access), seen)
    plan(granted)  # Sanity check: without strict grants the plan is accepted
    if told:
        with pytest.raises(PolicyError, match=re.escape(told)):
            plan(granted, strict_grants=True)
    else:
        plan(granted, strict_grants=True)


USER, ADMINISTRATORS, SYSTEM = "S-1-5-21-1-2-3-1001", "S-1-5-32-544", "S-1-5-18"


def owned(owner: str, *allowed: str) -> bytes:
    """Return a security descriptor with an owner, in the form that GetKernelObjectSecurity returns."""
    entries = tuple(access_list._allowed(sid, 0x1F01FF, 0) for sid in allowed)
    listed = access_list.Descriptor(control=0, revision=2, entries=entries)
    raw = bytearray(access_list.write(listed))
    struct.pack_into("<I", raw, 4, len(raw))
    return bytes(raw) + parse_sid(owner)


@pytest.mark.parametrize(
    ("owner", "allowed", "readable"),
    [
        # The access list that CPython's mkdir(0o700) sets is
        # D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW): it allows access to SYSTEM,
        # administrators and the owner. If an elevated process made the directory, the owner is the
        # Administrators group, so the same user without elevation cannot read it.
        (ADMINISTRATORS, (SYSTEM, ADMINISTRATORS, "S-1-3-4"), False),
        (USER, (SYSTEM, ADMINISTRATORS, "S-1-3-4"), True),
        (ADMINISTRATORS, (SYSTEM, ADMINISTRATORS, USER), True),
        (ADMINISTRATORS, ("S-1-5-32-545",), True),
    ],
)
def test_a_directory_of_administrators_causes_a_warning(monkeypatch, owner, allowed, readable):
    opened = contextlib.nullcontext(types.SimpleNamespace(value=1))
    monkeypatch.setattr(granted_tree, "open_object", lambda *_, **__: opened)
    monkeypatch.setattr(
        granted_tree.win32_security,
        "read_security",
        lambda _handle, *, owner: raw if owner else b"",
    )
    raw = owned(owner, *allowed)
    assert granted_tree.is_readable("D:\\x", (USER, "S-1-5-32-545")) is readable
    seen = {"D:\\x": Tree(nodes=(TOP,), readable=readable)}
    made = path_grants.plan(
        Policy(grants=(grant("D:\\x"),)), seen, known=KNOWN, directory="D:\\journal"
    )
    assert [path_grants.ADMINISTRATORS_ONLY in text for text in made.warnings()] == (
        [] if readable else [True]
    )


def test_a_missing_root_is_an_error(tmp_path):
    with pytest.raises(PolicyError, match="none"):
        path_grants.read_trees(
            Policy(grants=(grant(str(tmp_path / "none")),)), home="C:\\Users\\Ann"
        )


# Reparse tags from ntifs.h. Files and directories in OneDrive have the last two.
SYMLINK, JUNCTION, CLOUD, CLOUD_DIRECTORY = 0xA000000C, 0xA0000003, 0x9000601A, 0x9000701A


@pytest.mark.parametrize(
    ("tag", "leads"),
    [(0, False), (SYMLINK, True), (JUNCTION, True), (CLOUD, False), (CLOUD_DIRECTORY, False)],
)
def test_only_reparse_points_that_lead_elsewhere_are_links(tag, leads):
    """Check that files in OneDrive do not count as links, although they may be reparse points."""
    mode = stat.S_IFREG | 0o666
    found = types.SimpleNamespace(st_mode=mode, st_nlink=1, st_reparse_tag=tag)
    assert granted_tree._node("x", found).reparse is leads


@pytest.fixture
def handles(monkeypatch):
    """Replace Windows's information about handles with a table of paths."""
    facts = {}
    denied = facts["denied"] = set()

    class Handle:
        def __init__(self, path, *, access):
            if path in denied and access & granted_tree.win32_files.WRITE_DAC:
                raise PermissionError(13, "Access is denied")
            self.value = path

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(granted_tree.win32_files, "open_itself", Handle)
    monkeypatch.setattr(
        granted_tree.win32_files, "information", lambda path: (*facts[path][:2], (1, 2))
    )
    monkeypatch.setattr(granted_tree.win32_files, "final_path", lambda path: facts[path][2])
    monkeypatch.setattr(granted_tree.win32_files, "reparse_tag", lambda path: facts[path][3])
    monkeypatch.setattr(granted_tree.os, "listdir", lambda path: ["x"] if path == "/t" else [])
    monkeypatch.setattr(granted_tree.os.path, "join", lambda *parts: "/".join(parts))
    facts["/t"] = (granted_tree.win32_files.FILE_ATTRIBUTE_DIRECTORY, 1, "C:\\t")
    return facts


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ((0x20, 1, "C:\\t\\x"), ""),
        ((0x20, 1, "c:\\T\\x"), ""),
        ((0x20, 2, "C:\\t\\x"), ""),
        ((0x420, 1, "C:\\t\\x", SYMLINK), "is a link"),
        ((0x410, 1, "C:\\t\\x", JUNCTION), "is a link"),
        ((0x420, 1, "C:\\t\\x", CLOUD), ""),
        ((0x410, 1, "C:\\t\\x", CLOUD_DIRECTORY), ""),
        ((0x20, 1, "C:\\elsewhere\\x"), "was moved"),
        ((0x20, 1, "C:\\tx"), "was moved"),
        ((0x20, 1, "D:\\t\\x"), "was moved"),
    ],
)
def test_each_object_is_judged_by_its_own_handle(handles, fact, text):
    handles["/t/x"] = fact
    if not text:
        assert [node.name for node, _ in granted_tree.walk("/t")] == ["", "x"]
        return
    with pytest.raises(OSError, match=text):
        list(granted_tree.walk("/t"))


def test_a_closed_object_that_cannot_be_changed_does_not_stop_the_walk(handles):
    """Check that corral can walk a tree if the user may not change the access list of a closed
    object in it. A closed object is one to which the target gets no access. corral only reads its
    access list, so it does not need the right to change it.
    """
    handles["/t/x"] = (0x20, 1, "C:\\t\\x")
    handles["denied"].add("/t/x")
    assert [node.name for node, _ in granted_tree.walk("/t", {"x"})] == ["", "x"]
    with pytest.raises(PermissionError):
        list(granted_tree.walk("/t"))


def test_nothing_below_a_closed_directory_is_opened(handles):
    handles["/t/x"] = (0x10, 1, "C:\\t\\x")
    assert [node.name for node, _ in granted_tree.walk("/t", {"x"})] == ["", "x"]
    assert [node.name for node, _ in granted_tree.walk("/t", {""})] == [""]


@pytest.mark.parametrize(
    ("sid", "flags", "open_to_all"),
    [
        ("S-1-15-2-1", 0, True),
        # This entry does not apply to the directory itself, but the files below it inherit it.
        ("S-1-15-2-2", 0x0B, True),
        # An entry for the Users group does not apply to a container, which needs its own entry.
        ("S-1-5-32-545", 0, False),
    ],
)
def test_a_secret_that_every_container_can_read_ends_the_run(monkeypatch, sid, flags, open_to_all):
    """Check that corral refuses to run if all containers may read a secret. By default all
    containers may read new files in directories such as Program Files.
    """
    raw = struct.pack("<BBHI", 0, flags, 8 + len(parse_sid(sid)), 0x1200A9) + parse_sid(sid)
    acl = struct.pack("<BBHHH", 2, 0, 8 + len(raw), 1, 0) + raw
    listed = struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 20) + acl
    monkeypatch.setattr(granted_tree.win32_security, "read_security", lambda _handle: listed)
    if not open_to_all:
        granted_tree.check_closed("D:\\work\\.env", 7)
        return
    with pytest.raises(OSError, match="every AppContainer may use this object"):
        granted_tree.check_closed("D:\\work\\.env", 7)


def test_only_secrets_are_refused_for_being_readable_by_every_container():
    """Check that `node_modules`, which the target uses as a copy, and files of other users are
    closed but do not count as secrets. The target gets no access to any closed object, but only for
    secrets does it matter whether every container can read them.
    """
    seen = Tree(nodes=(TOP,), closed=(".env", "node_modules"), foreign=("theirs",))
    (less,) = plan((grant("D:\\work", "read"), seen)).exceptions
    assert less.closed == {".env", "node_modules", "theirs"}
    assert less.secret == {".env"}
