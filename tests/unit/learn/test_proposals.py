"""Test what `corral learn` proposes after a watched run: only a few paths, and no sensitive
ones.
"""

import os
import socket
import sys

import pytest

from corral.learn import proposals, variables
from corral.learn.policy_text import policy_text
from corral.learn.proposals import Proposal, Seen, find_denied, propose
from corral.plan.model import Plan
from corral.policy.manifest import decode_toml
from corral.programs.model import Program

pytestmark = pytest.mark.skipif(os.name == "nt", reason="`corral learn` needs POSIX paths")


@pytest.fixture
def home(tmp_path):
    for name in ("data", "project", ".ssh", "project/.git"):
        (tmp_path / name).mkdir()
    for name in ("data/a", "data/b", "project/main.py", ".ssh/id_rsa", "project/.env"):
        (tmp_path / name).write_text("x")
    return tmp_path


def learned(home, *accesses, **changes):
    seen = Seen(
        reads=("/usr",), writes=(), private=("/tmp", "/home/user"), own=("/srv/own",),
        home="/home/user", host_home=str(home),
    )  # fmt: skip
    seen = Seen(**{name: changes.get(name, getattr(seen, name)) for name in Seen.__match_args__})
    counts = dict.fromkeys(accesses, 1)
    return propose(find_denied(counts, seen), seen)


def flags(found):
    return [one.typed() for one in found.proposed]


def test_creating_an_existing_directory_is_not_a_write(home):
    """Imitate a program that first tries to create every directory above a new file. Each failed
    mkdir is reported as a write. Only a write to the file's own directory may be proposed.
    """
    steps = [(str(path), True) for path in (home.parent, home, home / "data")]
    found = learned(home, *steps, (f"{home}/data/new.db", True), private=("/home/user",))
    assert flags(found) == [f"--write {home}/data"]


def test_a_read_file_proposes_its_whole_project_and_a_written_file_only_itself(home):
    found = learned(home, (f"{home}/project/main.py", False), private=("/home/user",))
    assert flags(found) == [f"--read {home}/project"]
    found = learned(home, (f"{home}/project/main.py", True), private=("/home/user",))
    assert flags(found) == [f"--write {home}/project/main.py"]


def test_a_file_that_another_program_may_run_is_never_proposed_for_writing(home):
    """Write files that other programs may read or run: startup files in the home, a settings file
    that already exists, a new file in an unknown hidden directory, and a hook of a bare repository.
    """
    for name in (
        ".config/foo",
        ".other",
        ".local/share/server",
        "store.git/hooks",
        "store.git/objects",
    ):
        (home / name).mkdir(parents=True)
    for name in (".pythonrc", ".config/foo/settings", "store.git/HEAD"):
        (home / name).touch()
    wanted = [
        ".pythonrc",
        ".new_profile",
        ".config/foo/settings",
        ".other/new",
        "store.git/hooks/update",
    ]
    found = learned(home, *((f"{home}/{name}", True) for name in wanted), private=("/home/user",))
    assert flags(found) == []
    assert {path for path, _ in found.never} == {f"{home}/{name}" for name in wanted}
    found = learned(home, (f"{home}/.local/share/server/db", True), private=("/home/user",))
    assert flags(found) == [f"--write {home}/.local/share/server"]


@pytest.mark.parametrize("path", ["kept/credentials", "link/credentials", "data/a", "other/a"])
def test_a_secret_is_not_proposed_under_another_name(home, path):
    """Read a secret through two symlinks to its directory: ~/.aws, the usual place of this secret,
    and a symlink with another name. Sanity check: a file behind another symlink is proposed.
    """
    (home / "kept").mkdir()
    (home / "kept/credentials").write_text("x")
    for name, end in ((".aws", "kept"), ("link", "kept"), ("other", "data")):
        (home / name).symlink_to(end)
    found = learned(home, (f"{home}/{path}", False), private=("/home/user",))
    is_secret = "credentials" in path
    assert flags(found) == ([] if is_secret else [f"--read {home}/{path}"])
    assert [one for one, _ in found.never] == ([f"{home}/{path}"] if is_secret else [])


@pytest.mark.parametrize(
    ("path", "write"),
    [(".ssh/id_rsa", False), ("project/.env", False), ("project/.git/config", True), ("", False)],
)
def test_sensitive_paths_are_listed_and_not_proposed(home, path, write):
    wanted = f"{home}/{path}".rstrip("/")
    found = learned(home, (wanted, write), private=("/home/user",))
    assert flags(found) == []
    assert [row[0] for row in found.never] == [wanted]


@pytest.mark.parametrize("name", ["s", "link"])
def test_a_socket_is_listed_with_its_flag_and_not_proposed(home, monkeypatch, name):
    """Check that no socket is proposed. A socket in a home or in /tmp may belong to docker, tmux or
    an editor. These would run any program for a target that can connect to them.
    """
    path = f"{home}/{name}"
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(home)
        listener.bind("s")
        (home / "link").symlink_to("s")
        found = learned(home, (path, False), private=("/home/user",))
    assert flags(found) == []
    assert [(what, proposals.socket_flag(f"{home}/s") in why) for what, why in found.never] == [
        (path, True)
    ]


@pytest.mark.parametrize(
    ("asked", "write"),
    [
        (["all/new"], True),  # `all` is a link to the home directory
        (["root/newfile"], True),  # `root` is a link to /
        ([".config/new"], True),
        ([".config"], False),
        (["project/.envrc"], True),
        (["project/.vscode/tasks.json"], True),
        (["project/.github/mcp.json"], True),
        (["kernel/version"], False),  # `kernel` is a link to /proc
    ],
)
def test_a_forbidden_file_is_not_proposed_directly_or_through_a_link(home, asked, write):
    for name in (".config/gh", "project/.vscode", "project/.github"):
        (home / name).mkdir(parents=True)
    for name, end in (("all", home), ("root", "/"), ("kernel", "/proc")):
        (home / name).symlink_to(end)
    accesses = [(f"{home}/{one}", write) for one in asked]
    found = learned(home, *accesses, private=("/home/user",))
    assert flags(found) == []
    assert [what for what, _ in found.never] == [path for path, _ in accesses]


def test_several_files_beside_secrets_are_proposed_one_by_one(home):
    names = [f".config/{one}" for one in "abc"]
    (home / ".config").mkdir()
    for name in names:
        (home / name).write_text("x")
    found = learned(home, *((f"{home}/{one}", False) for one in names), private=("/home/user",))
    assert flags(found) == [f"--read {home}/{one}" for one in names]


def test_a_proposal_names_the_requested_link_and_its_destination(home):
    (home / "link").symlink_to(home / "data/a")
    accesses = ((f"{home}/link", False), (f"{home}/project/main.py", False))
    found = learned(home, *accesses, private=("/home/user",))
    said = {one.path: one.more for one in found.proposed}
    assert said == {
        f"{home}/link": f"a link to {home}/data/a",
        f"{home}/project": f"for {home}/project/main.py",
    }
    assert f"a link to {home}/data/a" in found.proposed[0].why


def test_the_work_grows_linearly_with_the_number_of_paths(home):
    def count_calls(number):
        tops = [home / f"many{number}" / str(one) for one in range(number)]
        for top in tops:
            top.mkdir(parents=True)
            (top / "file").write_text("x")
        calls = 0

        def count(*_):
            nonlocal calls
            calls += 1

        accesses = [(str(path), one) for top in tops for path, one in ((top, 0), (top / "file", 1))]
        sys.setprofile(count)
        try:
            learned(home, *accesses, private=("/home/user",), reads=("/usr", str(home)))
        finally:
            sys.setprofile(None)
        return calls

    assert count_calls(400) < 6 * count_calls(100)


def test_links_are_followed_if_the_target_sees_the_hosts_files(home):
    (home / "link").symlink_to(home / "data")
    accesses = [(f"{home}/link/a", False)]
    granted = (f"{home}/data",)
    assert flags(learned(home, *accesses, private=(), reads=granted, same_files=True)) == []
    assert flags(learned(home, *accesses, private=(), reads=granted)) != []


@pytest.mark.parametrize(
    "text",
    [
        'os.environ["NAME"]', "os.environ.get('NAME')", 'os.getenv("NAME", "x")',
        "process.env.NAME", 'process.env["NAME"]', "const { NAME } = process.env; env.NAME",
        'ENV["NAME"]',
    ],
)  # fmt: skip
def test_every_way_in_which_code_can_read_an_environment_variable_is_found(tmp_path, text):
    assert found_variables(tmp_path, text, {"NAME": "1", "OTHER": "2"}) == ["NAME"]


def found_variables(folder, text, environment, given=()):
    path = folder / "server.js"
    path.write_text(text)
    program = Program(path="/bin/x", argv=("x",), reads=(str(folder),))
    plan = Plan(program=program, steps=(), controls=(), environment=tuple(given))
    accesses = {(str(one), False): 1 for one in sorted(folder.iterdir())}
    found = variables.find_variables(accesses, plan, environment)
    return [one.path for one in found.proposed] + [f"secret {name}" for name, _ in found.never]


def test_a_target_cannot_block_the_search_of_its_code_or_fill_memory(tmp_path):
    """Put a named pipe and a link to /dev/zero into the directory with the server's code. A target
    can do so if this directory is writable. corral's search for variables must skip both.
    """
    os.mkfifo(tmp_path / "pipe.js")
    (tmp_path / "endless.js").symlink_to("/dev/zero")
    assert found_variables(tmp_path, "process.env.NAME", {"NAME": "1"}) == ["NAME"]


def test_only_variables_that_the_server_may_lack_are_proposed(tmp_path):
    text = "process.env.A_TOKEN process.env.TERM process.env.LD_PRELOAD process.env.GIVEN env.ENVOY"
    environment = dict.fromkeys(("A_TOKEN", "TERM", "LD_PRELOAD", "GIVEN", "ENVO"), "x")
    names = found_variables(tmp_path, text, environment, given=[("GIVEN", "x")])
    assert names == ["secret A_TOKEN"]


def test_a_written_policy_has_every_proposal_with_its_reason():
    accepted = [
        Proposal(flag="--read", path='/a "b"\n', why="it read\x1b[31m"),
        Proposal(flag="--env", path="NAME", why="a variable"),
        Proposal(flag="--max-memory", path="2G", why="memory"),
        Proposal(flag="--allow-net", path="a.b:443", why="a name"),
        Proposal(flag="--profile", path="memory", why="its own files"),
        Proposal(flag="--profile", path="qdrant", why="its own files"),
        Proposal(flag="--allow-subprocess", path="", why="a start"),
    ]
    text = policy_text(accepted)
    assert "\x1b" not in text
    data, _ = decode_toml(text, "policy")
    assert data == {
        "version": 1,
        "filesystem": {"state": True, "read": ['/a "b"\n']},
        "network": {"allow": ["a.b:443"]},
        "environment": {
            "set": {
                "MEMORY_FILE_PATH": "${STATE_DIRECTORY}/memory.jsonl",
                "FASTEMBED_CACHE_PATH": "${STATE_DIRECTORY}/fastembed",
            },
            "pass": ["NAME"],
        },
        "limits": {"memory": "2G"},
        "subprocess": {"allow": True},
    }
