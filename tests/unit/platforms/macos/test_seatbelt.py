"""Test the Seatbelt profile of macOS targets: its verdicts and its exact text. A path must not be
able to change the rules.

Seatbelt itself exists only on a Mac (`tests/macos`). Here the model in `seatbelt_evaluator.py`
evaluates the rules.
"""

import dataclasses
import os
import pathlib
import sys

import pytest
import seatbelt_tables as tables
from hypothesis import given
from hypothesis import strategies as some
from seatbelt_evaluator import Act, Profile, parse

from corral.platforms.macos import developer_tools, tier_seatbelt
from corral.platforms.macos.mechanisms import seatbelt_paths, seatbelt_profile, seatbelt_secrets
from corral.platforms.macos.mechanisms.seatbelt_profile import View
from corral.policy.model import Grant, Policy
from corral.programs import needed_files
from corral.programs.model import Program
from corral.record import replace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX paths")
GOLDEN = pathlib.Path(__file__).parent / "seatbelt"
HOME = "/Users/anna"
PYTHON = "/opt/homebrew/Cellar/python@3.12/3.12.1/bin/python3.12"
PRIVATE = "/private/tmp/corral-501-1-ab"
ALONE = View(
    execute=("/opt/homebrew/bin/python3", PYTHON),
    needed=("/opt/homebrew", f"{HOME}/server"),
    private=PRIVATE,
)
GRANTED = replace(
    ALONE,
    read=(f"{HOME}/notes",),
    write=(f"{HOME}/project",),
    sockets=("/private/var/run/one.sock",),
    hidden=(f"{HOME}/notes/.ssh",),
    held=(f"{HOME}/project/.git/hooks",),
    anchors=(f"{HOME}/project/.git", f"{HOME}/project"),
)
MANY = replace(GRANTED, subprocess=True, marker="org.corral.ab", listed=(f"{HOME}/server",))
RELEASES = {"10.15": tables.CATALINA, "14.4.1": tables.SONOMA}


def made(view, known=tables.SONOMA):
    return Profile(*seatbelt_profile.profile(view), known)


def grant(path, access, *, directory=True):
    return Grant(
        path=path, access=access, device=1, inode=1, directory=directory, owner=501, group=20
    )


ALLOWED = {
    "read its own files": (ALONE, Act("file-read-data", f"{HOME}/server/main.py")),
    "map its own libraries": (ALONE, Act("file-map-executable", "/opt/homebrew/lib/libssl.dylib")),
    "read the system's libraries": (ALONE, Act("file-read-data", "/usr/lib/dyld")),
    "pass above its files": (ALONE, Act("file-read-metadata", HOME)),
    "pass the links of the system": (ALONE, Act("file-read-metadata", "/tmp")),
    "write its private files": (ALONE, Act("file-write-create", f"{PRIVATE}/home/x")),
    "map a library of its private space": (ALONE, Act("file-map-executable", f"{PRIVATE}/tmp/x.node")),
    "ask whether its own file exists": (ALONE, Act("file-test-existence", f"{HOME}/server/main.py")),
    "ask whether a directory above exists": (ALONE, Act("file-test-existence", HOME)),
    "ask whether a granted file exists": (GRANTED, Act("file-test-existence", f"{HOME}/project/a.py")),
    "compile as V8 does": (ALONE, Act("dynamic-code-generation")),
    "read a grant": (GRANTED, Act("file-read-data", f"{HOME}/notes/a/b.md")),
    "write a write grant": (GRANTED, Act("file-write-data", f"{HOME}/project/a.py")),
    "remove in a write grant": (GRANTED, Act("file-write-unlink", f"{HOME}/project/a.py")),
    "be executed": (ALONE, Act("process-exec", PYTHON)),
    "signal itself": (ALONE, Act("signal", target="self")),
    "inspect itself": (ALONE, Act("process-info-pidinfo", target="self")),
    "look up a user id": (ALONE, Act("mach-lookup", name="com.apple.system.opendirectoryd.libinfo")),
    "ask for hardware properties": (ALONE, Act("sysctl-read", name="hw.ncpu")),
    "use its own unix sockets": (ALONE, Act("network-outbound", f"{PRIVATE}/tmp/s", socket="unix")),
    "bind its own unix sockets": (ALONE, Act("network-bind", f"{PRIVATE}/tmp/s", socket="unix")),
    "use a granted unix socket": (GRANTED, Act("network-outbound", "/private/var/run/one.sock", socket="unix")),
    "write to /dev/null": (ALONE, Act("file-write-data", "/dev/null")),
    "fork if allowed": (MANY, Act("process-fork")),
    "execute tools if allowed": (MANY, Act("process-exec", "/bin/sh")),
    "signal its own processes if allowed": (MANY, Act("signal", target="same-sandbox")),
    "inspect its own processes if allowed": (MANY, Act("process-info-pidinfo", target="same-sandbox")),
    "check its own signature": (ALONE, Act("process-info-codesignature", target="self")),
    "see metadata of a .env": (GRANTED, Act("file-read-metadata", f"{HOME}/notes/.env")),
    "ask whether a .env exists": (GRANTED, Act("file-test-existence", f"{HOME}/notes/a/.env.local")),
    "read a .env.example": (GRANTED, Act("file-read-data", f"{HOME}/notes/.env.example")),
    "read a file with a similar name": (GRANTED, Act("file-read-data", f"{HOME}/notes/.envrc")),
    "copy flags with a file": (GRANTED, Act("file-write-flags", f"{HOME}/project/x")),
    "copy flags in its private space": (ALONE, Act("file-write-flags", f"{PRIVATE}/home/x")),
    "read a repository": (GRANTED, Act("file-read-data", f"{HOME}/project/a/.git/config")),
    "keep a repository in its private space": (ALONE, Act("file-write-create", f"{PRIVATE}/home/x/.git/hooks/y")),
    "name interfaces": (ALONE, Act("sysctl-read", name="net.routetable.0.0.3.0")),
    "count semaphores": (ALONE, Act("sysctl-read", name="kern.sysv.semmns")),
    "look up the marker of its run": (MANY, Act("mach-lookup", name="org.corral.ab")),
    "read nix": (ALONE, Act("file-map-executable", "/nix/store/x-node/lib/libuv.dylib")),
    "list directories above bun's script": (MANY, Act("file-read-data", HOME, vnode="DIRECTORY")),
}  # fmt: skip
DENIED = {
    "read a file that is not granted": (GRANTED, Act("file-read-data", f"{HOME}/.ssh/id_ed25519")),
    "list the home": (ALONE, Act("file-read-data", HOME)),
    "see names beside its own files": (ALONE, Act("file-read-metadata", f"{HOME}/Documents/x")),
    "write a read grant": (GRANTED, Act("file-write-data", f"{HOME}/notes/a.md")),
    "write its own program": (ALONE, Act("file-write-data", f"{HOME}/server/main.py")),
    "write the system": (ALONE, Act("file-write-create", "/usr/local/bin/x")),
    "read a hidden secret": (GRANTED, Act("file-read-data", f"{HOME}/notes/.env")),
    "see a hidden secret": (GRANTED, Act("file-read-metadata", f"{HOME}/notes/.ssh/id_rsa")),
    "ask whether a hidden secret exists": (GRANTED, Act("file-test-existence", f"{HOME}/notes/.ssh")),
    "read a .env at any depth": (GRANTED, Act("file-read-data", f"{HOME}/notes/a/b/.env.production")),
    "read a .env in another case": (GRANTED, Act("file-read-data", f"{HOME}/notes/.ENV")),
    "read extended attributes of a .env": (GRANTED, Act("file-read-xattr", f"{HOME}/project/.env")),
    "replace a .env": (GRANTED, Act("file-write-unlink", f"{HOME}/project/a/.env")),
    "clone a file": (GRANTED, Act("file-clone", f"{HOME}/notes/.ssh")),
    "clone a directory": (GRANTED, Act("file-clone", f"{HOME}/project")),
    "make a repository anywhere": (GRANTED, Act("file-write-create", f"{HOME}/project/a/b/.git")),
    "make a repository in another case": (GRANTED, Act("file-write-create", f"{HOME}/project/a/.Git/hooks/x")),
    "change a repository at a lower level": (GRANTED, Act("file-write-data", f"{HOME}/project/vendor/x/.jj/repo/config.toml")),
    "ask whether a file that is not granted exists": (GRANTED, Act("file-test-existence", f"{HOME}/Documents/x")),
    "keep its files from being deleted": (GRANTED, Act("file-write-acl", f"{HOME}/project/x")),
    "make a hook": (GRANTED, Act("file-write-create", f"{HOME}/project/.git/hooks/pre-commit")),
    "rename the directory of hooks": (GRANTED, Act("file-write-unlink", f"{HOME}/project/.git")),
    "rename the grant": (GRANTED, Act("file-write-unlink", f"{HOME}/project")),
    "link a file under another name": (GRANTED, Act("file-link", f"{HOME}/notes/.env")),
    "leave a set-user-ID file": (GRANTED, Act("file-write-setugid", f"{HOME}/project/x")),
    "map a library that it wrote": (GRANTED, Act("file-map-executable", f"{HOME}/project/x.dylib")),
    "start a process": (ALONE, Act("process-fork")),
    "execute another program": (ALONE, Act("process-exec", "/bin/sh")),
    "execute a file that it wrote": (MANY, Act("process-exec", f"{HOME}/project/x")),
    "signal a process outside the sandbox": (MANY, Act("signal", target="others")),
    "signal a process of the same sandbox if processes are not allowed": (ALONE, Act("signal", target="same-sandbox")),
    "inspect a process outside the sandbox": (MANY, Act("process-info-pidinfo", target="others")),
    "read arguments and environment of other processes": (ALONE, Act("sysctl-read", name="kern.procargs2")),
    "read the memory of a task": (MANY, Act("mach-task-read", target="others")),
    "inspect a task": (MANY, Act("mach-task-inspect", target="others")),
    "name a task": (MANY, Act("mach-task-name", target="others")),
    "get the host port": (MANY, Act("mach-priv-host-port")),
    "read nvram": (MANY, Act("nvram-get")),
    "ask for the serial number": (MANY, Act("iokit-get-properties")),
    "map a library that is not granted": (GRANTED, Act("file-map-executable", f"{HOME}/Downloads/x.dylib")),
    "take over a task": (MANY, Act("mach-priv-task-port", target="others")),
    "start an application": (MANY, Act("mach-lookup", name="com.apple.coreservices.launchservicesd")),
    "ask lsd": (MANY, Act("mach-lookup", name="com.apple.lsd.mapdb")),
    "script an application": (MANY, Act("appleevent-send")),
    "ask the keychain": (MANY, Act("mach-lookup", name="com.apple.SecurityServer")),
    "make launchd start a program": (MANY, Act("job-creation")),
    "reach an address": (MANY, Act("network-outbound", socket="ip")),
    "listen": (MANY, Act("network-bind", socket="ip")),
    "be reached": (MANY, Act("network-inbound", socket="ip")),
    "resolve names": (MANY, Act("network-outbound", "/private/var/run/mDNSResponder", socket="unix")),
    "resolve names by mach": (MANY, Act("mach-lookup", name="com.apple.dnssd.service")),
    "reach docker": (GRANTED, Act("network-outbound", "/private/var/run/docker.sock", socket="unix")),
    "reach a host's socket in a write grant": (GRANTED, Act("network-outbound", f"{HOME}/project/s", socket="unix")),
    "type into the terminal": (MANY, Act("file-ioctl", "/dev/ttys001")),
    "write to the terminal by its name": (MANY, Act("file-write-data", "/dev/ttys001")),
    "open IOKit": (MANY, Act("iokit-open")),
    "use an operation without a rule": (MANY, Act("something-new")),
    "open an IOKit service": (MANY, Act("iokit-open-service")),
    "post a notification": (MANY, Act("darwin-notification-post")),
    "watch the network": (MANY, Act("necp-client-open")),
    "change its own memory limit": (MANY, Act("system-memorystatus-control")),
    "inspect a process of the same sandbox if processes are not allowed": (ALONE, Act("process-info-pidinfo", target="same-sandbox")),
    "check the signature of another process": (MANY, Act("process-info-codesignature", target="others")),
    "look up the marker of another run": (MANY, Act("mach-lookup", name="org.corral.cd")),
    "check certificates outside": (MANY, Act("mach-lookup", name="com.apple.trustd")),
    "read a file above bun's script": (MANY, Act("file-read-data", f"{HOME}/.profile")),
    "list directories above the script of another runtime": (GRANTED, Act("file-read-data", HOME, vnode="DIRECTORY")),
}  # fmt: skip


@pytest.mark.parametrize("what", ALLOWED)
def test_the_profile_allows_each_listed_act(what):
    view, act = ALLOWED[what]
    assert made(view).allows(act)


@pytest.mark.parametrize("what", DENIED)
def test_the_profile_denies_each_listed_act(what):
    view, act = DENIED[what]
    assert not made(view).allows(act)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("view", [ALONE, GRANTED, MANY], ids=["alone", "granted", "many"])
def test_every_operation_is_known_to_every_release(view, release):
    """Check that the profile loads in each release. An operation that a release does not know makes
    the whole profile fail, unless its rule has a `defined?` condition.
    """
    text, parameters = seatbelt_profile.profile(view)
    Profile(text + seatbelt_profile.proxy_rules(9), parameters, RELEASES[release])
    # Sanity check: an invented operation is unknown.
    with pytest.raises(AssertionError, match="unbound"):
        Profile(f"{text}(deny file-imagined)", parameters, RELEASES[release])
    with pytest.raises(AssertionError):
        Profile(f'{text}(allow process-fork (literal "/"))', parameters, RELEASES[release])


def test_operations_that_deny_default_leaves_open_are_denied_or_have_a_reason():
    by_name = {
        name
        for action, operations, filters in made(ALONE).stated
        if action == "deny" and not filters
        for name in operations
    }
    open_by_default = set(tables.ALLOWED_BY_VERSION_1)
    assert open_by_default - by_name == set(tables.LEFT_OPEN)
    assert set(tables.LEFT_OPEN) <= open_by_default
    assert len(open_by_default) == 28
    assert all(tables.LEFT_OPEN.values())


@pytest.mark.parametrize("name", [name for name in needed_files.SYSTEM if name.startswith(("/usr", "/bin", "/sbin", "/nix", "/System"))])  # fmt: skip
def test_system_paths_are_readable_without_a_grant(name):
    """Check that every target may read the system's paths. The list of files that a program needs
    leaves them out, so the profile itself must allow them.
    """
    for operation in ("file-read-data", "file-map-executable", "file-read-metadata"):
        assert made(ALONE).allows(Act(operation, f"{name}/x"))


def test_network_flows_are_open_only_with_the_proxy():
    text, parameters = seatbelt_profile.profile(ALONE)
    for operation in seatbelt_profile.FLOWS:
        opened = Profile(text + seatbelt_profile.proxy_rules(9), parameters)
        assert opened.allows(Act(operation))
        assert not made(ALONE).allows(Act(operation))


@given(some.integers(1, 65535), some.integers(1, 65535), some.sampled_from([ALONE, GRANTED, MANY]))
def test_the_proxy_opens_only_one_port(port, other, view):
    """Check that the proxy's rules open the proxy's port and change no other verdict."""
    text, parameters = seatbelt_profile.profile(view)
    opened, shut = (
        Profile(text + seatbelt_profile.proxy_rules(port), parameters),
        Profile(text, parameters),
    )

    def reach(**where):
        return Act(
            "network-outbound", **{"socket": "tcp", "host": "localhost", "port": port, **where}
        )

    assert opened.allows(reach())
    assert not shut.allows(reach())  # Sanity check: without the proxy's rules the port is closed
    assert opened.allows(reach(port=other)) == (port == other)
    for act in (
        reach(socket="udp"),
        reach(host="192.0.2.1"),
        reach(socket="ip"),
        reach(socket="unix"),
        replace_act(reach(), "network-bind"),
        replace_act(reach(), "network-inbound"),
    ):
        assert not opened.allows(act)
    for what, (seen, act) in (ALLOWED | DENIED).items():
        if seen is view and act.operation not in seatbelt_profile.FLOWS:
            assert opened.allows(act) == shut.allows(act), what


def replace_act(act, operation):
    return dataclasses.replace(act, operation=operation)


@pytest.mark.parametrize(
    "port", [0, -1, 65536, "80", '80")) (allow network* (remote tcp "*:80', 80.0, True, None]
)
def test_an_invalid_port_never_becomes_a_rule(port):
    with pytest.raises(ValueError):
        seatbelt_profile.proxy_rules(port)


def test_a_program_below_a_hidden_path_stays_readable():
    """Use fnm's layout: node is in Application Support, which is hidden, but node's files must stay
    readable.
    """
    hidden = f"{HOME}/Library/Application Support"
    node = f"{hidden}/fnm/node/bin/node"
    view = View(
        execute=(node,),
        needed=(f"{hidden}/fnm/node",),
        private=PRIVATE,
        read=(HOME,),
        hidden=(hidden,),
    )
    assert made(view).allows(Act("file-read-data", node))
    # realpath needs the metadata of all directories above node, but the target must not be able to
    # list these directories.
    assert made(view).allows(Act("file-read-metadata", hidden))
    assert not made(view).allows(Act("file-read-data", hidden))
    assert not made(view).allows(Act("file-read-data", f"{hidden}/Google/Chrome/Cookies"))
    assert made(view).allows(Act("file-read-data", f"{HOME}/x"))


def test_the_rule_for_the_deepest_path_wins():
    """Nest paths in each other: a write grant in a read grant in a write grant, a grant in a hidden
    path, and the server's own files in a write grant. The rule for the deepest path must win.
    """
    top = f"{HOME}/w"
    view = replace(
        ALONE,
        write=(top, f"{top}/r/w"),
        read=(f"{top}/r", f"{HOME}/.ssh/known_hosts"),
        hidden=(f"{HOME}/.ssh", f"{top}/r/w/.env"),
        held=(f"{top}/server",),
        needed=(f"{top}/server", f"{HOME}/p"),
        subprocess=True,
    )
    view = replace(view, write=(*view.write, f"{HOME}/p/data"))
    decided = made(view)
    for path, read, write, run in (
        (f"{top}/x", True, True, False),
        (f"{top}/r/x", True, False, True),
        (f"{top}/r/w/x", True, True, False),
        (f"{top}/r/w/.env", False, False, False),
        (f"{top}/server/x", True, False, True),
        (f"{HOME}/p/x", True, False, True),
        (f"{HOME}/p/data/x", True, True, False),
        (f"{HOME}/.ssh/id_rsa", False, False, False),
        (f"{HOME}/.ssh/known_hosts", True, False, True),
    ):
        found = [
            decided.allows(Act(name, path))
            for name in ("file-read-data", "file-write-data", "process-exec")
        ]
        assert found == [read, write, run], path
        assert decided.allows(Act("file-map-executable", path)) == run


@pytest.mark.parametrize("name", ["alone", "granted", "many"])
def test_profiles_equal_the_stored_texts(name):
    """Compare the profiles with the stored texts. Any difference changes the sandbox of every
    target on a Mac, so review it before you store the new text.
    """
    text, parameters = seatbelt_profile.profile(
        {"alone": ALONE, "granted": GRANTED, "many": MANY}[name]
    )
    told = "".join(f"; {key} = {path}\n" for key, path in parameters)
    assert (GOLDEN / f"{name}.sb").read_text() == text + told


STRANGE = some.text(
    some.characters(exclude_characters="\0", exclude_categories=()), max_size=40
).map(lambda text: f"/{text}")
NASTY = (
    '/a"))(allow default)(deny network* (literal "', "/a\n(allow default)", "/a\\", '/a\\"', "/a)))", "/a;b", '/"',
    "/\u202e\u2028x", "/\udcff", "/#|", '/(param "READ_0")', "/a\tb", "/\x01",
)  # fmt: skip


def shaped(path):
    return View(
        execute=(path,), needed=(path,), private=path, read=(path,), write=(path,), sockets=(path,),
        hidden=(path,), held=(path,), anchors=(path,), links=(path,), listed=(path,), subprocess=True,
    )  # fmt: skip


@given(STRANGE)
def test_the_text_of_a_profile_is_the_same_for_every_path(path):
    """Check that the profile's text refers to paths only through parameters."""
    text, parameters = seatbelt_profile.profile(shaped(path))
    assert text == seatbelt_profile.profile(shaped("/plain"))[0]
    assert {value for _, value in parameters} == {path}


@pytest.mark.parametrize("path", NASTY)
def test_a_path_with_quotes_cannot_add_rules_to_the_profile(path):
    text, parameters = seatbelt_profile.profile(shaped(path))
    assert text == seatbelt_profile.profile(shaped("/plain"))[0]
    assert not Profile(text, parameters).allows(Act("something-new"))


def test_deny_default_alone_leaves_operations_open():
    bare = Profile("(version 1)(deny default)", ())
    assert bare.allows(Act("file-map-executable", "/x"))
    assert not bare.allows(Act("file-read-data", "/x"))


def test_a_path_written_into_the_profiles_text_could_add_rules():
    text = f'(version 1)(deny default)(allow file-read* (subpath "{NASTY[0]}"))'
    assert Profile(text, ()).allows(Act("something-new"))
    with pytest.raises(ValueError, match="not SBPL"):
        parse('(allow file-read* (subpath "/a\\"b"))')


@pytest.mark.parametrize("path", ["", "relative", "/with\0nul", "~/x"])
def test_a_relative_path_is_refused(path):
    with pytest.raises(ValueError, match="not an absolute path"):
        seatbelt_profile.profile(shaped(path))


def test_a_rule_without_paths_is_left_out():
    """Check that a rule without any filters is left out, because it would apply to everything. The
    only exception is an operation that takes no filters.
    """
    rules = parse(seatbelt_profile.profile(replace(ALONE, execute=(), needed=()))[0])
    bare = [
        rule
        for rule in rules
        if rule[0] == "allow" and not any(isinstance(part, list) for part in rule)
    ]
    assert bare == [["allow", "dynamic-code-generation"]]


def test_secrets_in_grants_are_hidden_and_hooks_are_read_only(tmp_path):
    home = os.path.realpath(tmp_path)
    (tmp_path / "project/.git").mkdir(parents=True)
    grants = (grant(home, "read"), grant(f"{home}/project", "write"))
    hidden = seatbelt_secrets.hidden(grants, home)
    assert f"{home}/.ssh" in hidden
    assert f"{home}/Library/Keychains" in hidden
    held = seatbelt_secrets.held(grants, home)
    assert f"{home}/project/.git" in held
    assert f"{home}/Library/LaunchAgents" not in held  # this path is not in a write grant
    assert f"{home}/project" in seatbelt_secrets.anchors(grants, (*hidden, *held))
    named = (*grants, grant(f"{home}/project/.git", "write"))
    held = seatbelt_secrets.held(named, home)
    assert f"{home}/project/.git" not in held
    assert f"{home}/project/.git/hooks" in held
    assert f"{home}/project/.git/commondir" in held


@pytest.mark.parametrize("kind", ["absent", "file", "link"])
def test_a_target_cannot_make_a_repository(tmp_path, kind):
    """Check that the target cannot give the name .git to a directory with hooks. This must also
    fail if a file or a link already has that name.
    """
    top = os.path.realpath(tmp_path)
    (tmp_path / "store/hooks").mkdir(parents=True)
    if kind == "file":
        (tmp_path / ".git").write_text("gitdir: /elsewhere/.git/worktrees/x")
    elif kind == "link":
        (tmp_path / ".git").symlink_to("store")
    held = seatbelt_secrets.held((grant(top, "write"),), "/Users/nobody")
    decided = made(replace(ALONE, write=(top,), held=held))
    for operation in ("file-write-create", "file-write-data", "file-write-unlink"):
        assert not decided.allows(Act(operation, f"{top}/.git"))
        assert decided.allows(Act(operation, f"{top}/other"))
    assert decided.allows(Act("file-write-create", f"{top}/store/hooks/x")) == (kind != "link")


def test_protected_names_stay_read_only_in_a_grant_inside_a_protected_directory(tmp_path):
    inner = f"{os.path.realpath(tmp_path)}/.claude/plugins"
    os.makedirs(inner)
    grants = (grant(os.path.realpath(tmp_path), "write"), grant(inner, "write"))
    view = replace(ALONE, write=tuple(item.path for item in grants))
    decided = made(replace(view, held=seatbelt_secrets.held(grants, "/Users/nobody")))
    assert decided.allows(Act("file-write-create", f"{inner}/x"))
    assert not decided.allows(Act("file-write-create", f"{inner}/.vscode/tasks.json"))
    assert not decided.allows(Act("file-write-create", f"{os.path.dirname(inner)}/settings.json"))


def test_a_granted_path_is_usable_even_if_its_name_is_hidden_or_protected():
    """Grant a .env file, a repository, and a path in a repository. Without these grants they would
    be hidden or read-only.
    """
    top = f"{HOME}/w"
    named = replace(ALONE, read=(f"{top}/.env",), write=(top, f"{top}/a/.git", f"{top}/b/.git/x"))
    decided = made(named)
    assert decided.allows(Act("file-read-data", f"{top}/.env"))
    assert not decided.allows(Act("file-write-data", f"{top}/.env"))
    assert not decided.allows(Act("file-read-data", f"{top}/a/.env"))
    for path, allowed in (
        (f"{top}/a/.git/x", True),
        (f"{top}/b/.git/x/y", True),
        (f"{top}/b/.git/y", False),
    ):
        assert decided.allows(Act("file-write-data", path)) == allowed, path
    # Below a grant, the server's own .env is readable, but other .env files are not.
    own = made(replace(ALONE, read=(HOME,)))
    assert own.allows(Act("file-read-data", f"{HOME}/server/.env"))
    assert not own.allows(Act("file-read-data", f"{HOME}/other/.env"))


@pytest.mark.parametrize(
    ("view", "hidden"),
    [
        (ALONE, False),
        (replace(ALONE, write=(f"{HOME}/server",)), True),
        (replace(ALONE, read=(HOME,)), False),
        (replace(ALONE, read=(f"{HOME}/server/.env",), write=(f"{HOME}/server",)), False),
        (replace(ALONE, needed=(f"{HOME}/server/a",), write=(f"{HOME}/server",)), True),
    ],
    ids=["own", "granted", "around", "named", "part of it"],
)
def test_a_hidden_environment_file_is_known_at_planning(view, hidden):
    path = f"{HOME}/server/.env"
    assert seatbelt_profile.hides_environment_file(view, path) is hidden
    assert made(view).allows(Act("file-read-data", path)) is not hidden


def test_the_home_in_the_user_database_is_protected_too():
    pwd = pytest.importorskip("pwd")
    own = os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)
    policy = Policy(grants=(grant(own, "read"),))
    view = tier_seatbelt.build_view(
        policy, HOMEBREW, home="/Users/elsewhere", private=PRIVATE, state=""
    )
    assert f"{own}/.ssh" in view.hidden


def test_a_granted_secret_is_readable_and_its_neighbours_are_not():
    alone = (grant(f"{HOME}/.ssh/config", "read", directory=False), grant(f"{HOME}/x", "read"))
    assert not any(".ssh" in path for path in seatbelt_secrets.hidden(alone, HOME))
    assert f"{HOME}/.ssh" not in seatbelt_secrets.hidden((grant(f"{HOME}/.ssh", "read"),), HOME)
    around = (grant(f"{HOME}/.ssh/config", "read", directory=False), grant(HOME, "read"))
    assert f"{HOME}/.ssh" in seatbelt_secrets.hidden(around, HOME)
    assert seatbelt_secrets.hidden((), HOME) == ()


def test_the_target_of_a_link_to_a_secret_is_hidden(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".ssh").symlink_to("elsewhere")
    home = os.path.realpath(tmp_path)
    assert f"{home}/elsewhere" in seatbelt_secrets.hidden((grant(home, "read"),), home)


def test_a_run_sees_its_files_and_grants():
    program = Program(
        path="/opt/homebrew/bin/python3", real=PYTHON, argv=("python3",), reads=("/opt/homebrew", f"{HOME}/p/server"),
        links=(("/opt/homebrew/bin/python3", "../Cellar"),),
    )  # fmt: skip
    policy = Policy(
        grants=(grant(f"{HOME}/p", "write"), grant("/private/var/run/s", "socket", directory=False))
    )
    view = tier_seatbelt.build_view(policy, program, home=HOME, private=PRIVATE, state="/state")
    assert view.execute == ("/opt/homebrew/bin/python3", PYTHON)
    assert view.write == (f"{HOME}/p", "/state")
    assert view.sockets == ("/private/var/run/s",)
    assert f"{HOME}/p/server" in view.held  # the server's own files in a writable directory
    assert not made(view).allows(Act("file-write-data", f"{HOME}/p/server/main.py"))
    assert made(view).allows(Act("file-write-data", f"{HOME}/p/data"))


@pytest.mark.parametrize(
    ("granted", "writes"),
    [
        (f"{HOME}/p", False),
        (f"{HOME}/p/server", True),
        (f"{HOME}/p/server/main", True),
        (f"{HOME}/other", False),
    ],
    ids=["around", "the directory itself", "the program itself", "elsewhere"],
)
def test_a_program_in_a_write_grant_is_protected_as_on_linux(granted, writes):
    """Check that the target may change its own files only if the user granted exactly their path,
    not a directory around it. It may execute these files, but no other files in the directory.
    """
    main = f"{HOME}/p/server/main"
    program = Program(path=main, real=main, argv=(main,), reads=(f"{HOME}/p/server",))
    policy = Policy(grants=(grant(granted, "write"),), subprocess=True)
    view = tier_seatbelt.build_view(policy, program, home=HOME, private=PRIVATE, state="")
    decided = made(view)
    for name in ("file-write-data", "file-write-mode"):
        assert decided.allows(Act(name, main)) == writes, name
    assert decided.allows(Act("process-exec", main))
    if granted != main:
        beside = f"{granted}/new"
        assert decided.allows(Act("file-write-create", beside))
        assert decided.allows(Act("process-exec", beside)) == (granted == f"{HOME}/p/server")


@pytest.mark.parametrize("name", ["Python", "Python3", "PythonT"])
def test_a_framework_python_may_execute_its_image(name, tmp_path):
    """Check that a framework Python may execute `Python.app`, which replaces it in the same
    process. Try several names, because the framework and the program have no fixed names.
    """
    version = f"{os.path.realpath(tmp_path)}/{name}.framework/Versions/3.9"
    images = f"{version}/Resources/Python.app/Contents/MacOS"
    os.makedirs(images)
    pathlib.Path(images, name).touch()
    real = f"{version}/bin/python3.9"
    assert tier_seatbelt.framework_images(real) == (f"{images}/{name}",)
    program = Program(path=real, real=real, argv=(real,))
    assert tier_seatbelt.executables(program) == (real, f"{images}/{name}")
    assert "second program" in tier_seatbelt.notes(program)[0]
    for other in (f"{version}/bin/pip", "/opt/homebrew/bin/node", "/usr/bin/python3", "/x/Ruby.framework/Versions/3/bin/python3"):  # fmt: skip
        assert tier_seatbelt.framework_images(other) == ()


def test_sh_may_execute_the_shell_that_the_system_selected_for_it(tmp_path, monkeypatch):
    program = Program(path="/bin/sh", real="/bin/sh", argv=("sh",))
    monkeypatch.setattr(tier_seatbelt, "SELECTED_SHELL", str(tmp_path / "none"))
    assert tier_seatbelt.executables(program) == ("/bin/sh", "/bin/bash")
    (tmp_path / "sh").symlink_to("/bin/zsh")
    monkeypatch.setattr(tier_seatbelt, "SELECTED_SHELL", str(tmp_path / "sh"))
    assert tier_seatbelt.executables(program) == ("/bin/sh", "/bin/zsh")
    assert "/bin/zsh" not in tier_seatbelt.executables(replace(program, real="/bin/ls"))


def test_libraries_of_package_managers_are_readable(tmp_path, monkeypatch):
    """Use the layout of pyenv, whose python loads Homebrew's openssl. If Homebrew is installed, the
    target must be able to load this library.
    """
    top = os.path.realpath(tmp_path)
    monkeypatch.setattr(tier_seatbelt, "MANAGERS", ((f"{top}/Cellar", tier_seatbelt.HOMEBREW),))
    pyenv = Program(path=f"{HOME}/.pyenv/versions/3.12/bin/python", real=f"{HOME}/.pyenv/versions/3.12/bin/python3.12",
                    argv=("python",), reads=(f"{HOME}/.pyenv/versions/3.12",))  # fmt: skip

    def sees(name):
        view = tier_seatbelt.build_view(Policy(), pyenv, home=HOME, private=PRIVATE, state="")
        return made(view).allows(Act("file-map-executable", f"{top}/{name}"))

    assert not sees("opt/openssl@3/lib/libssl.dylib")
    (tmp_path / "Cellar").mkdir()
    assert sees("opt/openssl@3/lib/libssl.dylib")
    assert not sees("var/postgresql@16/base/1")


def test_selected_developer_tools_are_found(tmp_path, monkeypatch):
    top = os.path.realpath(tmp_path)
    for name in ("one", "two"):
        os.makedirs(f"{top}/{name}/usr/bin")
        pathlib.Path(top, name, "usr/bin/git").touch(mode=0o755)
    monkeypatch.setattr(developer_tools, "USUAL", (f"{top}/one",))
    monkeypatch.setattr(developer_tools, "SELECTED", (f"{top}/link",))
    assert developer_tools.find_directory() == f"{top}/one"
    os.symlink(f"{top}/two", f"{top}/link")
    tools = developer_tools.find_directory()
    assert tools == f"{top}/two"
    assert developer_tools.find_tool("/usr/bin/git", tools) == f"{top}/two/usr/bin/git"
    for other in ("/opt/homebrew/bin/git", "/usr/bin/no such tool"):
        assert developer_tools.find_tool(other, tools) == ""
    assert developer_tools.find_tool("/usr/bin/git", "") == ""
    for subprocess in (True, False):
        view = tier_seatbelt.build_view(
            Policy(subprocess=subprocess), HOMEBREW, home=HOME, private=PRIVATE, state=""
        )
        assert made(view).allows(Act("process-exec", f"{tools}/usr/bin/git")) == subprocess


def test_bun_lists_parent_directories_and_a_warning_says_so():
    bun = Program(
        path=f"{HOME}/.bun/bin/bun",
        real=f"{HOME}/.bun/bin/bun",
        argv=("bun",),
        reads=(f"{HOME}/server",),
    )
    for program, shown in ((bun, True), (HOMEBREW, False)):
        view = tier_seatbelt.build_view(Policy(), program, home=HOME, private=PRIVATE, state="")
        assert made(view).allows(Act("file-read-data", HOME, vnode="DIRECTORY")) == shown
        assert any("bun lists" in note for note in tier_seatbelt.notes(program)) == shown


HOMEBREW = Program(
    path="/opt/homebrew/bin/node", real="/opt/homebrew/bin/node", argv=("node",), reads=("/opt/homebrew",)
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["/opt/homebrew", "/usr/local"])
def test_data_of_installed_services_is_hidden(prefix):
    """Check that databases and settings in Homebrew's directories are hidden. These files belong to
    the user who runs the target, so file permissions would not protect them.
    """
    data, settings = f"{prefix}/var/postgresql@16/base/1", f"{prefix}/etc/wireguard/wg0.conf"

    def seen(*grants):
        view = tier_seatbelt.build_view(
            Policy(grants=grants), HOMEBREW, home=HOME, private=PRIVATE, state=""
        )
        decided = made(view)
        return [decided.allows(Act("file-read-data", path)) for path in (data, settings)]

    assert seen() == [False, False]
    assert seen(grant(f"{prefix}/var", "read")) == [True, False]
    assert seen(grant(prefix, "read")) == [True, True]
    decided = made(
        tier_seatbelt.build_view(Policy(), HOMEBREW, home=HOME, private=PRIVATE, state="")
    )
    for needed in ("lib/libuv.dylib", "etc/openssl@3/cert.pem", "etc/ca-certificates/cert.pem"):
        assert decided.allows(Act("file-read-data", f"{prefix}/{needed}")), needed


def test_rules_use_paths_as_the_kernel_spells_them(monkeypatch):
    """Imitate a volume that ignores case. On such a volume `realpath` returns the path in the case
    that the user typed, so rules for hidden paths would not match.
    """
    monkeypatch.setattr(
        seatbelt_paths, "to_kernel_path", lambda path: path.replace("/users/Anna", HOME).replace("library", "Library")
    )  # fmt: skip
    policy = Policy(grants=(grant("/users/Anna/library", "read"),))
    view = tier_seatbelt.build_view(policy, HOMEBREW, home="/users/Anna", private=PRIVATE, state="")
    assert view.read == (f"{HOME}/Library",)
    assert f"{HOME}/Library/Keychains" in view.hidden


def test_on_other_systems_than_macos_paths_stay_unchanged():
    assert seatbelt_paths.to_kernel_path("/usr/bin/no such program") == "/usr/bin/no such program"


def test_a_grant_through_a_link_is_reached_through_the_link():
    written = f"{HOME}/link/notes"
    policy = Policy(grants=(replace(grant("/Volumes/x/notes", "read"), written=written),))
    decided = made(tier_seatbelt.build_view(policy, HOMEBREW, home=HOME, private=PRIVATE, state=""))
    for path in (written, f"{HOME}/link"):
        assert decided.allows(Act("file-read-metadata", path))
        assert not decided.allows(Act("file-read-data", path))
    assert not decided.allows(Act("file-read-metadata", f"{HOME}/link/other"))
