"""Test how policies are merged. The user's policy overrides all other policies, a server's request
can only tighten the result, and forbidden paths are never granted.
"""

import functools
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corral
from corral.directories import STAGING, directories
from corral.errors import PolicyError
from corral.policy import path_grants as grants_module
from corral.policy import user_config
from corral.policy.manifest import Manifest, from_data, from_flags, load
from corral.policy.merge import merge
from corral.policy.model import GIB, LIMITS, Limits, Policy, Source
from corral.policy.requests import describe_requests, requested_items
from corral.policy.variables import is_loader_variable
from corral.record import replace
from corral.supervisor.prepare import CERTIFICATES

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX paths")


@pytest.fixture(autouse=True)
def no_xdg(monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    for name in ("notes", "data", "server", ".config"):
        (path / name).mkdir(parents=True)
    (path / "notes" / "a.txt").write_text("a")
    return path


def said(origin="policy", directory="", **tables):
    tables = {name.replace("pass_", "pass"): value for name, value in tables.items()}
    return replace(from_data({"version": 1, **tables}, origin), directory=str(directory))


def user(**tables):
    return Source(manifest=said(**tables))


def request(*, approved=False, directory="", **tables):
    return Source(
        manifest=said("server/corral.toml", directory, **tables), trust="request", approved=approved
    )


def joined(*sources, home="/home/somebody", cwd="/nowhere", **more):
    return merge(sources, home=str(home), cwd=str(cwd), **more)


def refusal(*sources, **more):
    with pytest.raises(PolicyError) as caught:
        joined(*sources, **more)
    return caught.value


def grants(policy):
    return {(grant.written, grant.access) for grant in policy.grants}


# Limits


def test_without_any_source_the_policy_is_the_default():
    assert joined() == Policy()


def test_the_users_last_value_counts():
    policy = joined(user(limits={"memory": "2G", "pids": 5}), user(limits={"memory": "512M"}))
    assert policy.limits == replace(Limits(), memory=GIB // 2, pids=5)
    assert policy.stated == {"memory", "pids"}


def test_a_limit_of_none_turns_the_limit_off_and_requires_nothing():
    policy = joined(
        user(limits={"timeout": "5s", "memory": "none"}), user(limits={"timeout": "none"})
    )
    assert (policy.limits.timeout, policy.limits.memory) == (None, None)
    assert policy.stated == frozenset()


def test_a_wall_that_the_user_mentions_counts_as_stated():
    assert joined(user(network={"allow": []}, filesystem={"read": []})).stated == {
        "network",
        "filesystem",
    }
    assert joined(user(subprocess={"allow": False})).stated == {"subprocess"}
    assert joined(user(environment={"pass": ["A"]})).stated == frozenset()


def test_a_request_tightens_the_defaults_and_the_users_values():
    tight = request(limits={"memory": "64M", "timeout": "5s"}, subprocess={"allow": False})
    policy = joined(user(limits={"memory": "2G"}, subprocess={"allow": True}), tight)
    assert (policy.limits.memory, policy.limits.timeout, policy.subprocess) == (
        64 << 20,
        5000,
        False,
    )
    assert {"memory", "timeout", "subprocess"} <= policy.stated


def test_the_user_can_raise_a_limit_that_a_request_lowered():
    tight = request(limits={"memory": "64M"}, subprocess={"allow": False})
    policy = joined(tight, user(limits={"memory": "2G"}, subprocess={"allow": True}))
    assert (policy.limits.memory, policy.subprocess) == (2 * GIB, True)


def test_an_approved_request_counts_but_not_against_the_user():
    wide = {"limits": {"memory": "4G", "pids": 500}, "subprocess": {"allow": True}}
    alone = joined(request(approved=True, **wide))
    assert (alone.limits.memory, alone.limits.pids, alone.subprocess) == (4 * GIB, 500, True)
    strict = user(limits={"memory": "1G"}, subprocess={"allow": False})
    for sources in (
        [strict, request(approved=True, **wide)],
        [request(approved=True, **wide), strict],
    ):
        policy = joined(*sources)
        assert (policy.limits.memory, policy.limits.pids, policy.subprocess) == (GIB, 500, False)


# Ceilings


def ceiling(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    return user_config.load(str(tmp_path)).ceilings


def test_a_stated_value_above_its_ceiling_names_both_places(tmp_path):
    most = ceiling(tmp_path, '# mine\n[ceilings]\nmemory = "2G"\n')
    path = tmp_path / "p.toml"
    path.write_text('version = 1\n\n[limits]\nmemory = "4G"\n')
    error = refusal(Source(manifest=load(str(path))), ceilings=most)
    assert f"{path}:4: limits.memory" in error.message
    assert f"{tmp_path / 'config.toml'}:3: ceilings.memory" in error.message
    flags = Source(manifest=from_flags({"limits.memory": "none"}))
    assert "--max-memory is above" in refusal(flags, ceilings=most).message
    assert joined(user(limits={"memory": "2G"}), ceilings=most).limits.memory == 2 * GIB


def test_a_default_is_lowered_to_its_ceiling_and_limits_with_ceilings_are_required(tmp_path):
    most = ceiling(
        tmp_path, '[ceilings]\nmemory = "64M"\ntimeout = "1h"\npids = 500\nio = "none"\n'
    )
    policy = joined(ceilings=most)
    assert policy.limits == replace(Limits(), memory=64 << 20, timeout=3_600_000)
    assert policy.stated == {"memory", "timeout", "pids"}


def test_an_approved_request_stays_under_the_ceiling(tmp_path):
    most = ceiling(tmp_path, '[ceilings]\nmemory = "2G"\n')
    refusal(request(approved=True, limits={"memory": "4G"}), ceilings=most)


# Grants and requests


EVERYTHING = {
    "limits": {"memory": "4G", "pids": "none", "cpu": 2},
    "network": {"allow": ["a.example"], "listen": [8080]},
    "filesystem": {"read": ["notes"], "write": ["data"], "unix_sockets": ["s"], "state": True},
    "subprocess": {"allow": True},
    "environment": {
        "pass": ["LANG"],
        "secrets": ["TOKEN"],
        "set": {"LD_PRELOAD": "/x", "LEVEL": "1"},
    },
    "degrade": {"allow": ["cpu"]},
    "windows": {"app_container": False, "network": "full"},
    "macos": {"seatbelt": "off"},
}


def test_all_requests_are_listed_at_once_with_the_remedy(home):
    error = refusal(request(directory=home / "server", **EVERYTHING), home=home)
    for words in (
        "memory to 4G", "pids to none", "connect to a.example", "port 8080", f"read {home / 'server' / 'notes'}",
        f"read and write {home / 'server' / 'data'}", f"socket {home / 'server' / 's'}", "home directory", "start other programs",
        "variable LANG", "secret TOKEN", "LD_PRELOAD", "cpu cannot be enforced", "AppContainer", "full", "Seatbelt",
    ):  # fmt: skip
        assert words in error.message
    assert "LEVEL" not in error.message
    # Without the request there is no CPU limit, so this limit only tightens the policy.
    assert "limits.cpu to" not in error.message
    assert error.hint
    assert f"corral approve {home / 'server'}" in error.hint


def test_requests_are_described_without_control_characters(home):
    wild = said(
        directory=home,
        filesystem={"read": ["\x1b[2J"]},
        environment={"set": {"PYTHONPATH": "\x1b"}},
    )
    words = [item.text for item in requested_items(wild, str(home), str(home))]
    assert len(words) == 2
    assert all(one.isprintable() for one in words)
    assert describe_requests(said(limits={"memory": "1M"}, environment={"set": {"A": "b"}})) == []


def test_requests_that_the_user_granted_need_no_approval(home):
    asked = request(
        directory=home, limits={"memory": "2G"}, network={"allow": ["A.example"]}, filesystem={"read": ["notes"]},
        subprocess={"allow": True}, environment={"secrets": ["TOKEN"]}, degrade={"allow": ["cpu"]},
    )  # fmt: skip
    word = {
        "limits": {"memory": "4G"}, "network": {"allow": ["a.example"]}, "filesystem": {"write": ["~/notes"]},
        "subprocess": {"allow": True}, "environment": {"secrets": ["TOKEN"]}, "degrade": {"allow": ["cpu"]},
    }  # fmt: skip
    policy = joined(user(**word), asked, home=home)
    assert policy == replace(
        joined(user(**word), home=home), limits=replace(Limits(), memory=2 * GIB)
    )
    for missing in word:
        less = {name: value for name, value in word.items() if name != missing}
        refusal(user(**less), asked, home=home)


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "ld_preload", "DYLD_INSERT_LIBRARIES", "NODE_OPTIONS", "PYTHONPATH", "PYTHONSTARTUP", "PERL5OPT",
     "RUBYOPT", "GIT_SSH_COMMAND", "BASH_ENV", "ENV", "PATH", "https_proxy", "JAVA_TOOL_OPTIONS", "npm_config_registry",
     *CERTIFICATES],
)  # fmt: skip
def test_loader_variables_need_approval(name):
    asked = {"environment": {"set": {name: "x", "LOG_LEVEL": "info"}}}
    assert name in refusal(request(**asked)).message
    assert dict(joined(request(approved=True, **asked)).set_values) == {
        name: "x",
        "LOG_LEVEL": "info",
    }
    assert dict(joined(user(**asked)).set_values) == {name: "x", "LOG_LEVEL": "info"}
    plain = {"environment": {"set": {"LOG_LEVEL": "info"}}}
    assert joined(request(**plain)).set_values == (("LOG_LEVEL", "info"),)


def test_a_request_never_replaces_the_users_variable():
    for kind in ({"set": {"TOKEN": "mine"}}, {"pass": ["TOKEN"]}, {"secrets": ["TOKEN"]}):
        mine = user(environment=kind)
        forged = request(environment={"set": {"TOKEN": "theirs"}})
        assert joined(mine, forged) == joined(forged, mine) == joined(mine)


def test_the_users_lists_are_added_up_and_an_empty_list_resets_them(home):
    one = user(network={"allow": ["a.example"]}, filesystem={"read": ["~/notes"]})
    two = user(network={"allow": ["b.example", "A.example"]})
    assert joined(one, two, home=home).allow == ("a.example", "b.example")
    assert joined(one, user(network={"allow": []}), home=home).allow == ()
    assert (
        joined(
            request(approved=True, network={"allow": ["c.example"]}), user(network={"allow": []})
        ).allow
        == ()
    )


def test_only_the_user_can_ask_for_strict_and_best_effort():
    loose = replace(said(), best_effort=True)
    assert joined(Source(manifest=loose)).best_effort
    assert not joined(Source(manifest=loose, trust="request", approved=True)).best_effort
    assert joined(Source(manifest=from_flags({}, strict=True))).strict


def test_a_port_cannot_be_listened_on_and_reached():
    error = refusal(user(network={"listen": [443, 9000]}), user(network={"allow": ["a.example"]}))
    assert "port 443" in error.message
    assert "9000" not in error.message
    assert joined(user(network={"listen": [443], "allow": ["a.example:8443"]})).listen == (443,)


def test_ports_are_counted_over_all_sources():
    one, two = (
        user(network={"allow": ["a.example:1-40"]}),
        user(network={"allow": ["b.example:41-80"]}),
    )
    assert "64 ports" in refusal(one, two).message
    assert joined(one, user(network={"allow": ["b.example:1-64"]})).allow


# Paths


@pytest.mark.links
def test_a_grant_is_for_the_file_at_the_end_of_the_path(home):
    (home / "link").symlink_to("notes")
    policy = joined(user(filesystem={"read": ["~/link", "notes/a.txt"]}), home=home, cwd=home)
    one, two = policy.grants
    found = os.lstat(home / "notes")
    assert (one.path, one.written) == (str(home / "notes"), str(home / "link"))
    assert (one.device, one.inode, one.owner, one.group) == (
        found.st_dev,
        found.st_ino,
        found.st_uid,
        found.st_gid,
    )
    assert (one.directory, two.directory) == (True, False)
    assert two.path == two.written == str(home / "notes" / "a.txt")


def test_relative_paths_start_at_the_policy_file_or_the_working_directory(home):
    path = home / "server" / "p.toml"
    path.write_text('version = 1\n[filesystem]\nread = ["../notes/./x/.."]\n')
    flags = Source(manifest=from_flags({"filesystem.read": ["data"]}))
    policy = joined(Source(manifest=load(str(path))), flags, home=home, cwd=home)
    assert grants(policy) == {(str(home / "notes"), "read"), (str(home / "data"), "read")}


def test_duplicate_grants_are_merged_and_write_wins(home):
    spellings = ["~/data", "~/data/", f"{home}/./data", f"{home}/notes/../data"]
    policy = joined(user(filesystem={"read": spellings, "write": [f"{home}//data"]}), home=home)
    assert grants(policy) == {(str(home / "data"), "write")}
    assert [grant.path for grant in policy.grants] == [str(home / "data")]


def test_a_missing_path_is_reported_with_key_and_position(home):
    path = home / "p.toml"
    path.write_text('version = 1\n[filesystem]\nread = [\n"notes",\n"absent"]\n')
    error = refusal(Source(manifest=load(str(path))), home=home)
    assert f"{path}:5: filesystem.read[1]: {str(home / 'absent')!r} does not exist" in error.message
    assert error.hint.startswith("is it spelled right? To make ")
    flags = Source(manifest=from_flags({"filesystem.write": ["absent", "~root/x"]}))
    message = refusal(flags, home=home, cwd=home).message
    assert message.count("--write") == 2


@POSIX
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("out", "touch {path} (a file) or mkdir -p {path} (a directory)"),
        ("conf.d", "touch {path} (a file) or mkdir -p {path} (a directory)"),
        ("python3.12", "touch {path} (a file) or mkdir -p {path} (a directory)"),
        ("out.txt", "touch {path}"),
        ("new/out.txt", "mkdir -p {parent} && touch {path}"),
        ("new/out", "mkdir -p {parent} && touch {path} (a file) or mkdir -p {path} (a directory)"),
    ],
)
def test_the_hint_for_a_missing_path_makes_it(home, name, hint):
    path = home / name
    source = Source(manifest=from_flags({"filesystem.write": [str(path)]}))
    error = refusal(source, home=home)
    wanted = hint.format(path=path, parent=path.parent)
    assert error.hint == f"is it spelled right? To make it: {wanted}"
    command = wanted.partition(" (a file)")[0]
    subprocess.run(command, shell=True, check=True)
    assert path.is_file()
    assert grants(joined(source, home=home)) == {(str(path), "write")}


@POSIX
def test_the_hint_for_a_missing_socket_names_no_command(home):
    error = refusal(user(filesystem={"unix_sockets": [str(home / "absent")]}), home=home)
    assert error.hint == "is it spelled right? Is the program that makes it running?"


@POSIX
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/.",
        "/proc",
        "/proc/self",
        "//proc",
        "/../proc",
        "/sys",
        "/dev",
        "/dev/null",
        "/dev/shm",
    ],
)
def test_system_directories_are_never_granted(home, access, path):
    refusal(user(filesystem={access: [path]}), home=home)
    (home / "link").symlink_to(path)
    refusal(user(filesystem={access: ["~/link"]}), home=home)


@POSIX
def test_files_on_another_volume_than_the_root_can_be_granted(home, monkeypatch):
    """Imitate macOS, where the root is on one volume, and the users' files and /private are on
    another. The users' files can be granted, but files on the volume of /proc cannot.
    """
    theirs = os.stat(home).st_dev
    apple = {"/": (theirs + 1, 2), "/private/var": (theirs, 3), "/private/var/run": (theirs, 4)}
    monkeypatch.setattr(grants_module, "file_identity", apple.get)
    assert grants_module.make_grant("write", str(home / "data"))
    monkeypatch.setattr(grants_module, "file_identity", {**apple, "/proc": (theirs, 1)}.get)
    with pytest.raises(grants_module.Refused, match="/proc"):
        grants_module.make_grant("write", str(home / "data"))


@POSIX
def test_the_directory_run_is_never_granted(home):
    if os.path.isdir("/run"):
        assert "/run" in refusal(user(filesystem={"read": ["/run"]}), home=home).message
    assert joined(user(filesystem={"read": ["/usr"]}), home=home).grants


@POSIX
@pytest.mark.parametrize("access", ["read", "write"])
def test_corrals_own_directories_are_never_granted(home, access):
    own = directories(home=str(home))
    for path in (own.config, own.state, own.cache):
        os.makedirs(os.path.join(path, "deep"), exist_ok=True)
        for inner in (path, os.path.join(path, "deep")):
            assert (
                "belongs to corral"
                in refusal(user(filesystem={access: [inner]}), home=home).message
            )


@POSIX
@pytest.mark.parametrize("access", ["read", "write"])
def test_packages_that_are_being_installed_are_not_granted(home, access):
    """Check that the staging directory is refused. Otherwise a target could change the files of a
    server that is being installed. An installer may get only its own directory inside it.
    """
    staging = directories(home=str(home)).cache + STAGING
    part = os.path.join(staging, "0123")
    os.makedirs(part)
    for asked in (user, functools.partial(request, approved=True)):
        told = refusal(asked(filesystem={access: [staging]}), home=home)
        assert "belongs to corral's packages" in told.message
    told = refusal(request(approved=True, filesystem={access: [part]}), home=home)
    assert "belongs to corral's packages" in told.message
    assert joined(user(filesystem={access: [part]}), home=home).grants


@POSIX
def test_directories_above_corrals_can_be_read_but_not_written(home):
    above = os.path.dirname(directories(home=str(home)).config)
    os.makedirs(above, exist_ok=True)
    assert joined(user(filesystem={"read": [str(above)]}), home=home).grants
    assert refusal(user(filesystem={"write": [str(above)]}), home=home)
    assert joined(user(filesystem={"write": ["~/data"]}), home=home).grants


@POSIX
def test_code_and_interpreter_cannot_be_written(home):
    code = os.path.dirname(os.path.abspath(corral.__file__))
    for path in (
        code,
        os.path.dirname(code),
        os.path.join(code, "network"),
        sys.prefix,
        sys.base_prefix,
    ):
        assert "corral's" in refusal(user(filesystem={"write": [path]}), home=home).message
        assert joined(user(filesystem={"read": [path]}), home=home).grants


@POSIX
def test_a_protected_path_is_recognized_by_its_inode(home):
    place = home / "data"
    other = home / "other"
    other.symlink_to(place)
    assert grants_module.contains(str(other), str(place / "x"), {})
    assert not grants_module.contains(str(home / "notes"), str(place / "x"), {})


@POSIX
@pytest.mark.parametrize(
    ("outer", "inner", "held"),
    [
        ("/home/me/.config", "/mnt/a/corral", True),
        ("/home/me/.config/corral", "/mnt/a/corral/deep", True),
        ("/mnt/a", "/home/me/.config/corral", True),
        ("/home/me/.config/corral", "/mnt/a", False),
        ("/home/me/.config", "/data/home/me/.config", False),
        ("/home/me/.configuration", "/mnt/a/corral", False),
    ],
)
def test_a_protected_path_is_recognized_in_a_second_mount(outer, inner, held):
    table = {"/": ("8:1", "/"), "/mnt/a": ("8:1", "/home/me/.config"), "/data": ("8:2", "/")}
    assert grants_module.contains(outer, inner, table) == held
    assert not grants_module.contains(outer, inner, {})


def test_policy_report_and_audit_files_cannot_be_written(home):
    path = home / "data" / "p.toml"
    path.write_text('version = 1\n[filesystem]\nwrite = ["."]\n')
    assert "the policy itself" in refusal(Source(manifest=load(str(path))), home=home).message
    write = user(filesystem={"write": [str(home / "server")]})
    report = str(home / "server" / "report.json")
    assert "a file of this run" in refusal(write, home=home, protected=[report]).message
    assert joined(write, home=home, protected=[str(home / "notes" / "report.json")]).grants


@POSIX
def test_a_unix_socket_can_be_granted_only_by_its_own_key(home, monkeypatch):
    monkeypatch.chdir(home / "data")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        [grant] = joined(user(filesystem={"unix_sockets": ["~/data/s"]}), home=home).grants
        assert (grant.access, grant.directory) == ("socket", False)
        for kind in ("read", "write"):
            error = refusal(user(filesystem={kind: ["~/data/s"]}), home=home)
            assert "unix_sockets" in str(error.hint)
        refusal(user(filesystem={"unix_sockets": ["~/notes/a.txt"]}), home=home)


@POSIX
def test_a_fifo_is_refused(home):
    os.mkfifo(home / "data" / "fifo")
    refusal(user(filesystem={"read": ["~/data/fifo"]}), home=home)


@pytest.mark.links
def test_a_link_planted_in_a_writable_directory_is_refused(home):
    (home / "data" / "out").symlink_to(home / "notes")
    (home / "data" / "in").symlink_to(home / "data")
    both = user(filesystem={"write": ["~/data"], "read": ["~/data/out"]})
    assert "link out of" in refusal(both, home=home).message
    assert joined(user(filesystem={"read": ["~/data", "~/data/out"]}), home=home).grants
    assert joined(user(filesystem={"write": ["~/data"], "read": ["~/data/in"]}), home=home).grants


# The tests below merge the user's policy with random requests. No request may allow more than the
# user's policy does.


SIZES = st.sampled_from(["1M", "512M", "1G", "2G", "none"])
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "limits": st.fixed_dictionaries(
            {}, optional={"memory": SIZES, "disk": SIZES, "io": SIZES, "pids": st.sampled_from([1, 128, 500, "none"]),
                          "timeout": st.sampled_from(["1s", "none"])}
        ),
        "network": st.fixed_dictionaries(
            {}, optional={"allow": st.lists(st.sampled_from(["a.example", "b.example"]), max_size=2),
                          "listen": st.lists(st.sampled_from([1, 2]), max_size=2)}
        ),
        "filesystem": st.fixed_dictionaries(
            {}, optional={"read": st.lists(st.sampled_from(["notes", "data"]), max_size=2),
                          "write": st.lists(st.sampled_from(["notes", "data"]), max_size=2), "state": st.booleans()}
        ),
        "subprocess": st.fixed_dictionaries({"allow": st.booleans()}),
        "environment": st.one_of(
            st.fixed_dictionaries({"pass": st.lists(st.sampled_from(["A", "B"]), max_size=2)}),
            st.fixed_dictionaries({"secrets": st.lists(st.sampled_from(["A", "B"]), max_size=2)}),
            st.fixed_dictionaries({"set": st.dictionaries(st.sampled_from(["A", "ENV", "LD_X"]), st.just("v"))}),
        ),
        "degrade": st.fixed_dictionaries({"allow": st.lists(st.sampled_from(["cpu", "network"]), max_size=1)}),
        "windows": st.fixed_dictionaries(
            {}, optional={"app_container": st.booleans(), "minifilter": st.booleans(), "keep_grants": st.booleans(),
                          "fail_on_app_container_error": st.booleans(),
                          "network": st.sampled_from(["none", "outbound", "full"])}
        ),
        "macos": st.fixed_dictionaries({"seatbelt": st.sampled_from(["auto", "off"])}),
    },
)  # fmt: skip


def loosened(new, old):
    """Return every field in which `new` allows more than `old`."""
    found = []
    for name in LIMITS:
        asked, before = getattr(new.limits, name), getattr(old.limits, name)
        if before is not None and (asked is None or asked > before):
            found.append(name)
    lists = ("allow", "listen", "pass_names", "secret_names", "degrade")
    found += [name for name in lists if not set(getattr(new, name)) <= set(getattr(old, name))]
    reach = {(grant.path, grant.access) for grant in old.grants}
    reach |= {(path, "read") for path, access in reach if access == "write"}
    if not {(grant.path, grant.access) for grant in new.grants} <= reach:
        found.append("grants")
    dangerous = {entry for entry in new.set_values if is_loader_variable(entry[0])}
    if not dangerous <= set(old.set_values):
        found.append("set_values")
    mine = {*old.pass_names, *old.secret_names, *(name for name, _ in old.set_values)}
    if {entry for entry in new.set_values if entry[0] in mine} - set(old.set_values):
        found.append("the user's variables")
    found += [
        name
        for name in ("state", "subprocess", "best_effort")
        if getattr(new, name) > getattr(old, name)
    ]
    found += [
        name for name in ("keep_grants",) if new.windows.keep_grants > old.windows.keep_grants
    ]
    guards = ("app_container", "minifilter", "fail_on_app_container_error")
    found += [name for name in guards if getattr(new.windows, name) < getattr(old.windows, name)]
    if new.windows.network not in {"none", old.windows.network}:
        found.append("windows.network")
    if new.macos.seatbelt == "off" and old.macos.seatbelt != "off":
        found.append("seatbelt")
    if old.strict and not new.strict:
        found.append("strict")
    required = {
        name for name in old.stated if name not in LIMITS or getattr(new.limits, name) is not None
    }
    if not required <= new.stated:
        found.append("stated")
    return found


def test_the_comparison_of_policies_finds_fields_that_allow_more(home):
    base = Policy()
    wider = [
        replace(base, limits=replace(Limits(), memory=None)), replace(base, allow=("a",)), replace(base, state=True),
        replace(base, subprocess=True), replace(base, best_effort=True), replace(base, degrade=frozenset({"cpu"})),
        replace(base, set_values=(("LD_PRELOAD", "x"),)), replace(base, windows=replace(base.windows, minifilter=False)),
        joined(user(filesystem={"read": ["~/notes"]}), home=home),
    ]  # fmt: skip
    for policy in wider:
        assert loosened(policy, base)
    assert not loosened(replace(base, limits=replace(Limits(), memory=1, timeout=5)), base)


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(DOCUMENTS, max_size=2), DOCUMENTS, st.integers(0, 2))
def test_an_unapproved_request_never_allows_more(home, mine, asked, position):
    users = [Source(manifest=said(directory=home, **one)) for one in mine]
    try:
        before = joined(*users, home=home)
    except PolicyError:
        return
    asking = Source(manifest=said("theirs", home, **asked), trust="request")
    sources = [*users[:position], asking, *users[position:]]
    try:
        after = joined(*sources, home=home)
    except PolicyError as error:
        assert "more than you approved" in error.message  # noqa: PT017
        return
    assert loosened(after, before) == []


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(DOCUMENTS)
def test_a_request_is_refused_exactly_if_it_asks_for_something(home, asked):
    asking = said("theirs", home, **asked)
    source = Source(manifest=asking, trust="request")
    if list(requested_items(asking, str(home), str(home))):
        assert "more than you approved" in refusal(source, home=home).message
    else:
        assert loosened(joined(source, home=home), Policy()) == []


def test_an_empty_manifest_changes_nothing():
    assert joined(Source(manifest=Manifest(origin="x"))) == Policy()


def test_flags_become_a_policy_without_slow_imports():
    """Check that flags are parsed without slow standard modules, because each import delays the
    start of the target.
    """
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from corral.policy.manifest import from_flags\n"
        "from corral.policy.merge import merge\n"
        "from corral.policy.model import Source\n"
        "flags = from_flags({'limits.memory': '64M', 'network.allow': ['a.example'], 'filesystem.read': [sys.argv[1]]})\n"
        "assert merge([Source(manifest=flags)], home='/h', cwd='/').grants\n"
        "print(*sys.modules)"
    )
    source = os.path.dirname(os.path.dirname(os.path.abspath(corral.__file__)))
    command = [sys.executable, "-I", "-S", "-c", code, source]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    heavy = {
        "typing",
        "dataclasses",
        "enum",
        "re",
        "json",
        "tomllib",
        "socket",
        "subprocess",
        "difflib",
        "hashlib",
    }
    assert "corral.policy.merge" in loaded
    assert not heavy & loaded


def test_the_policy_lists_the_variables_that_a_servers_request_set():
    """Check that `requested_names` lists the environment variables that a server's request sets.
    corral does not mask their values as secrets in its messages. Otherwise a request could set
    A_TOKEN to a host name, so that the report of denials would not show this host.
    """
    asked = request(environment={"set": {"A_TOKEN": "theirs", "B_TOKEN": "theirs"}})
    mine = user(environment={"set": {"B_TOKEN": "mine", "C_TOKEN": "mine"}})
    assert joined(asked, mine).requested_names == ("A_TOKEN",)
    passed = request(approved=True, environment={"secrets": ["A_TOKEN"]})
    assert joined(passed).requested_names == ()
