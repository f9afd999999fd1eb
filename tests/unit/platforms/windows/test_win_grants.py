"""Which trees can be granted to an AppContainer, decided from a description of them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PolicyError
from corral.paths import windows as paths
from corral.platforms.windows.files import granted_tree
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


def test_a_plain_tree():
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


def test_the_users_wish_to_keep():
    step = plan((grant("D:\\work"), tree()), keep_grants=True)
    assert step.keep
    assert "kept" in step.describe()


def test_links_and_second_names():
    text = refusal((grant("D:\\work"), tree(file("link", reparse=True), file("twin", links=2))))
    assert "D:\\work\\link" in text
    assert "D:\\work\\twin has 2 names" in text


def test_a_junction_as_root():
    top = Node(name="", directory=True, reparse=True)
    assert "D:\\work is a link" in refusal((grant("D:\\work"), Tree(nodes=(top,))))


def test_many_problems_are_counted_not_listed():
    nodes = [file(f"twin{number}", links=2) for number in range(100)]
    text = refusal((grant("D:\\work"), tree(*nodes)))
    assert "and 95 more in D:\\work" in text
    assert text.count("twin") == 5


def test_too_many_entries():
    assert "more than 20000" in refusal((grant("D:\\work"), Tree(nodes=(TOP,), whole=False)))


def test_places_of_the_system_and_the_user():
    text = refusal(
        (grant("C:\\Windows\\x"), tree()), (grant("C:\\Users"), tree()), (grant("D:\\"), tree())
    )
    assert "C:\\Windows\\x: it belongs to Windows" in text
    assert "C:\\Users: it holds your profile" in text
    assert "D:\\: it is a whole drive" in text


def test_read_inside_write_cannot_be_held():
    outer, inner = (grant("D:\\work", "write"), tree()), (grant("d:\\WORK\\docs"), tree())
    assert "cannot be held read-only" in refusal(outer, inner)
    plan(
        (grant("D:\\work"), tree()), (grant("D:\\work\\docs", "write"), tree())
    )  # the control: the other way round


def test_sockets():
    assert "unix sockets" in refusal((grant("D:\\s.sock", "socket", directory=False), tree()))


@pytest.mark.parametrize(
    "name", [".ssh", ".SSH", "a\\b\\c\\.aws", ".env", "app\\.env.local", "x\\id_ed25519", ".npmrc"]
)
def test_secrets_are_not_granted_along(name):
    nodes = [file(name)]
    assert name in refusal((grant("D:\\work"), tree(*nodes)))
    assert name in refusal((grant("D:\\work", "write"), tree(*nodes)))


@pytest.mark.parametrize(
    "name", [".git\\hooks", "sub\\.git\\config", ".vscode", "app\\.mcp.json", ".husky"]
)
def test_what_starts_by_itself_is_not_writable(name):
    assert name in refusal((grant("D:\\work", "write"), tree(file(name))))
    plan((grant("D:\\work"), tree(file(name))))  # the control: reading it is nothing


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("C:\\Users\\Ann\\.config", "gcloud"),
        ("c:\\USERS\\ann\\.Config", "GH"),
        ("C:\\Users\\Ann\\.cargo", "credentials.toml"),
        ("C:\\Users\\Ann\\AppData\\Local\\Google", "Chrome"),
        ("C:\\Users\\Ann\\AppData\\Roaming\\Code", "User"),
        ("C:\\Users\\Ann\\AppData\\Roaming\\Microsoft\\Windows", "PowerShell"),
    ],
)
def test_secrets_of_the_profile_are_not_granted_along(root, name):
    assert name in refusal((grant(root), tree(file(name))))
    plan((grant(f"{root}\\{name}"), tree()))  # named itself it is the user's word
    plan((grant("D:\\x"), tree(file(name))))  # the control: elsewhere the name means nothing


def test_what_starts_at_logon_is_not_writable():
    root = "C:\\Users\\Ann\\AppData\\Roaming\\Microsoft\\Windows"
    assert "Start Menu" in refusal((grant(root, "write"), tree(file("Start Menu"))))
    plan((grant(root), tree(file("Start Menu"))))  # the control


def test_what_would_start_by_itself_is_watched():
    """What is not there cannot be refused; that a target has made it is told."""
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
def test_what_only_looks_like_it(name):
    plan((grant("D:\\work", "write"), tree(file(name))))


def test_a_secret_that_is_named_itself():
    nodes = [Node(name=".git", directory=True), Node(name=".git\\hooks", directory=True)]
    pair = (grant("D:\\work", "write"), tree(*nodes))
    assert ".git\\hooks" in refusal(pair)
    plan(pair, (grant("D:\\work\\.git\\hooks", "write"), tree()))


def test_naming_another_path_is_no_leave():
    pair = (grant("D:\\work"), tree(file(".env")))
    assert ".env" in refusal(pair, (grant("D:\\work\\.envx"), tree()))
    assert ".env" in refusal(pair, (grant("D:\\"), tree()))


names = st.lists(st.text(st.sampled_from("ab.env~:sh\\ "), min_size=1, max_size=12), max_size=6)


@given(names, st.sampled_from(["read", "write"]))
def test_any_names(some, access):
    """It refuses or plans; it never raises anything else, and never plans a secret."""
    nodes = [file(name) for name in some]
    try:
        plan((grant("D:\\work", access), tree(*nodes)))
    except PolicyError:
        return
    assert not any(
        name.split("\\")[-1] in {".env", ".ssh"} and name.count("\\") < 2 for name in some
    )


@pytest.mark.links
def test_a_real_tree_is_seen_as_it_is(tmp_path):
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


def test_a_tree_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(granted_tree, "MAX_ENTRIES", 3)
    for name in "ab":
        (tmp_path / name).write_text("")
    assert granted_tree.read_tree(str(tmp_path)).whole
    (tmp_path / "c").write_text("")
    assert not granted_tree.read_tree(str(tmp_path)).whole


def test_a_root_that_is_not_there(tmp_path):
    with pytest.raises(PolicyError, match="none"):
        path_grants.read_trees(Policy(grants=(grant(str(tmp_path / "none")),)))


@pytest.fixture
def handles(monkeypatch):
    """What Windows says of handles, by the path that each was opened for."""
    facts = {}

    class Handle:
        def __init__(self, path):
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
    monkeypatch.setattr(granted_tree.os, "listdir", lambda path: ["x"] if path == "/t" else [])
    monkeypatch.setattr(granted_tree.os.path, "join", lambda *parts: "/".join(parts))
    facts["/t"] = (granted_tree.win32_files.FILE_ATTRIBUTE_DIRECTORY, 1, "C:\\t")
    return facts


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ((0x20, 1, "C:\\t\\x"), ""),
        ((0x20, 1, "c:\\T\\x"), ""),
        ((0x20, 2, "C:\\t\\x"), "has 2 names"),
        ((0x420, 1, "C:\\t\\x"), "is a link"),
        ((0x410, 1, "C:\\t\\x"), "is a link"),
        ((0x20, 1, "C:\\elsewhere\\x"), "was moved"),
        ((0x20, 1, "C:\\tx"), "was moved"),
        ((0x20, 1, "D:\\t\\x"), "was moved"),
    ],
)
def test_each_object_is_judged_by_its_own_handle(handles, fact, text):
    handles["/t/x"] = fact
    if not text:
        assert [path for path, _, _ in granted_tree.walk("/t")] == ["/t", "/t/x"]
        return
    with pytest.raises(OSError, match=text):
        list(granted_tree.walk("/t"))
