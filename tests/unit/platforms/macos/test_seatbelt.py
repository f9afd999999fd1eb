"""The profile that macOS targets run under: what it decides, that it stays as it is, and that no path can change it.

Seatbelt itself is only on a Mac (`tests/macos`); here its rules are read by `seatbelt_evaluator.py`.
"""

import dataclasses
import os
import pathlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some
from seatbelt_evaluator import Act, Profile, parse

from corral.platforms.macos import tier_seatbelt
from corral.platforms.macos.mechanisms import seatbelt_paths, seatbelt_profile, seatbelt_secrets
from corral.platforms.macos.mechanisms.seatbelt_profile import View
from corral.policy.model import Grant, Policy
from corral.programs.model import Program
from corral.record import replace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="paths of another kind")
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
    hidden=(f"{HOME}/notes/.env",),
    held=(f"{HOME}/project/.git/hooks",),
    anchors=(f"{HOME}/project/.git", f"{HOME}/project"),
)
MANY = replace(GRANTED, subprocess=True)


def made(view):
    return Profile(*seatbelt_profile.profile(view))


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
    "ask whether a file of its own is there": (ALONE, Act("file-test-existence", f"{HOME}/server/main.py")),
    "ask whether what lies above is there": (ALONE, Act("file-test-existence", HOME)),
    "ask whether a granted file is there": (GRANTED, Act("file-test-existence", f"{HOME}/project/a.py")),
    "compile as V8 does": (ALONE, Act("dynamic-code-generation")),
    "read a grant": (GRANTED, Act("file-read-data", f"{HOME}/notes/a/b.md")),
    "write a write grant": (GRANTED, Act("file-write-data", f"{HOME}/project/a.py")),
    "remove in a write grant": (GRANTED, Act("file-write-unlink", f"{HOME}/project/a.py")),
    "be executed": (ALONE, Act("process-exec", PYTHON)),
    "signal itself": (ALONE, Act("signal", target="self")),
    "look at itself": (ALONE, Act("process-info-pidinfo", target="self")),
    "ask who a uid is": (ALONE, Act("mach-lookup", name="com.apple.system.opendirectoryd.libinfo")),
    "ask what the machine has": (ALONE, Act("sysctl-read", name="hw.ncpu")),
    "use its own unix sockets": (ALONE, Act("network-outbound", f"{PRIVATE}/tmp/s", socket="unix")),
    "bind its own unix sockets": (ALONE, Act("network-bind", f"{PRIVATE}/tmp/s", socket="unix")),
    "use a granted unix socket": (GRANTED, Act("network-outbound", "/private/var/run/one.sock", socket="unix")),
    "write to /dev/null": (ALONE, Act("file-write-data", "/dev/null")),
    "fork where it may": (MANY, Act("process-fork")),
    "execute tools where it may": (MANY, Act("process-exec", "/bin/sh")),
    "signal its own where it may": (MANY, Act("signal", target="same-sandbox")),
}  # fmt: skip
DENIED = {
    "read what nobody granted": (GRANTED, Act("file-read-data", f"{HOME}/.ssh/id_ed25519")),
    "list the home": (ALONE, Act("file-read-data", HOME)),
    "see names beside its own": (ALONE, Act("file-read-metadata", f"{HOME}/Documents/x")),
    "write a read grant": (GRANTED, Act("file-write-data", f"{HOME}/notes/a.md")),
    "write its own program": (ALONE, Act("file-write-data", f"{HOME}/server/main.py")),
    "write the system": (ALONE, Act("file-write-create", "/usr/local/bin/x")),
    "read a hidden secret": (GRANTED, Act("file-read-data", f"{HOME}/notes/.env")),
    "see a hidden secret": (GRANTED, Act("file-read-metadata", f"{HOME}/notes/.env")),
    "ask whether a hidden secret is there": (GRANTED, Act("file-test-existence", f"{HOME}/notes/.env")),
    "ask whether somebody's file is there": (GRANTED, Act("file-test-existence", f"{HOME}/Documents/x")),
    "keep its files from being deleted": (GRANTED, Act("file-write-acl", f"{HOME}/project/x")),
    "make a hook": (GRANTED, Act("file-write-create", f"{HOME}/project/.git/hooks/pre-commit")),
    "rename what holds the hooks": (GRANTED, Act("file-write-unlink", f"{HOME}/project/.git")),
    "rename the grant": (GRANTED, Act("file-write-unlink", f"{HOME}/project")),
    "link a file under another name": (GRANTED, Act("file-link", f"{HOME}/notes/.env")),
    "leave a set-user-ID file": (GRANTED, Act("file-write-setugid", f"{HOME}/project/x")),
    "make a file that cannot be removed": (ALONE, Act("file-write-flags", f"{PRIVATE}/home/x")),
    "map a library that it wrote": (GRANTED, Act("file-map-executable", f"{HOME}/project/x.dylib")),
    "start a process": (ALONE, Act("process-fork")),
    "execute another program": (ALONE, Act("process-exec", "/bin/sh")),
    "execute what it wrote": (MANY, Act("process-exec", f"{HOME}/project/x")),
    "signal somebody else": (MANY, Act("signal", target="others")),
    "signal its like without processes": (ALONE, Act("signal", target="same-sandbox")),
    "look at somebody else": (MANY, Act("process-info-pidinfo", target="others")),
    "read somebody's arguments and environment": (ALONE, Act("sysctl-read", name="kern.procargs2")),
    "read the memory of a task": (MANY, Act("mach-task-read", target="others")),
    "inspect a task": (MANY, Act("mach-task-inspect", target="others")),
    "name a task": (MANY, Act("mach-task-name", target="others")),
    "have the host's port": (MANY, Act("mach-priv-host-port")),
    "read nvram": (MANY, Act("nvram-get")),
    "ask for the serial number": (MANY, Act("iokit-get-properties")),
    "map a library that nobody granted": (GRANTED, Act("file-map-executable", f"{HOME}/Downloads/x.dylib")),
    "take over a task": (MANY, Act("mach-priv-task-port", target="others")),
    "start an application": (MANY, Act("mach-lookup", name="com.apple.coreservices.launchservicesd")),
    "ask lsd": (MANY, Act("mach-lookup", name="com.apple.lsd.mapdb")),
    "script an application": (MANY, Act("appleevent-send")),
    "ask the keychain": (MANY, Act("mach-lookup", name="com.apple.SecurityServer")),
    "have launchd start something": (MANY, Act("job-creation")),
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
    "do what no rule knows": (MANY, Act("something-new")),
}  # fmt: skip


@pytest.mark.parametrize("what", ALLOWED)
def test_it_may(what):
    view, act = ALLOWED[what]
    assert made(view).allows(act)


@pytest.mark.parametrize("what", DENIED)
def test_it_may_not(what):
    view, act = DENIED[what]
    assert not made(view).allows(act)


@given(some.integers(1, 65535), some.integers(1, 65535), some.sampled_from([ALONE, GRANTED, MANY]))
def test_the_door_is_one_port_and_nothing_else(port, other, view):
    """The same text as without the proxy, and behind it the rules for its port."""
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
    assert not shut.allows(reach())  # the control
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
        if seen is view:
            assert opened.allows(act) == shut.allows(act), what


def replace_act(act, operation):
    return dataclasses.replace(act, operation=operation)


@pytest.mark.parametrize(
    "port", [0, -1, 65536, "80", '80")) (allow network* (remote tcp "*:80', 80.0, True, None]
)
def test_what_is_no_port_never_becomes_a_rule(port):
    with pytest.raises(ValueError):
        seatbelt_profile.proxy_rules(port)


def test_the_shims_of_xcode_are_named():
    program = Program(path="/usr/bin/python3", real="/usr/bin/python3", argv=("python3",))
    assert "xcrun" in tier_seatbelt.notes(program)[0]
    assert tier_seatbelt.notes(replace(program, real="/opt/homebrew/bin/node")) == ()


def test_a_program_that_lies_in_what_is_hidden_stays_readable():
    """fnm keeps node in Application Support."""
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
    # realpath looks at everything above; nothing can be listed there.
    assert made(view).allows(Act("file-read-metadata", hidden))
    assert not made(view).allows(Act("file-read-data", hidden))
    assert not made(view).allows(Act("file-read-data", f"{hidden}/Google/Chrome/Cookies"))
    assert made(view).allows(Act("file-read-data", f"{HOME}/x"))


def test_what_lies_deeper_decides():
    """Write in read in write, a grant in what is hidden, and the server's own files in a write grant."""
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
def test_golden(name):
    """What changes here changes what every target on a Mac may do: read the difference, then store the new text."""
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
        hidden=(path,), held=(path,), anchors=(path,), links=(path,), subprocess=True,
    )  # fmt: skip


@given(STRANGE)
def test_no_path_changes_the_text(path):
    """The same rules for whatever path: it is nowhere but in the parameters, as it is."""
    text, parameters = seatbelt_profile.profile(shaped(path))
    assert text == seatbelt_profile.profile(shaped("/plain"))[0]
    assert {value for _, value in parameters} == {path}


@pytest.mark.parametrize("path", NASTY)
def test_no_path_ends_its_string(path):
    text, parameters = seatbelt_profile.profile(shaped(path))
    assert text == seatbelt_profile.profile(shaped("/plain"))[0]
    assert not Profile(text, parameters).allows(Act("something-new"))


def test_the_control_what_deny_default_leaves_open():
    bare = Profile("(version 1)(deny default)", ())
    assert bare.allows(Act("file-map-executable", "/x"))
    assert not bare.allows(Act("file-read-data", "/x"))


def test_the_control_a_spliced_path_would_end_its_string():
    text = f'(version 1)(deny default)(allow file-read* (subpath "{NASTY[0]}"))'
    assert Profile(text, ()).allows(Act("something-new"))
    with pytest.raises(ValueError, match="no SBPL"):
        parse('(allow file-read* (subpath "/a\\"b"))')


@pytest.mark.parametrize("path", ["", "relative", "/with\0nul", "~/x"])
def test_what_is_no_real_path_is_refused(path):
    with pytest.raises(ValueError, match="no absolute path"):
        seatbelt_profile.profile(shaped(path))


def test_a_rule_without_filters_is_left_out():
    """It would be about everything; one operation has nothing that could be filtered."""
    rules = parse(seatbelt_profile.profile(replace(ALONE, execute=(), needed=()))[0])
    bare = [
        rule
        for rule in rules
        if rule[0] == "allow" and not any(isinstance(part, list) for part in rule)
    ]
    assert bare == [["allow", "dynamic-code-generation"]]


def test_secrets_in_grants_are_hidden_and_hooks_are_held(tmp_path):
    home = os.path.realpath(tmp_path)
    (tmp_path / "project/.git").mkdir(parents=True)
    grants = (grant(home, "read"), grant(f"{home}/project", "write"))
    hidden = seatbelt_secrets.hidden(grants, home)
    assert f"{home}/.ssh" in hidden
    assert f"{home}/Library/Keychains" in hidden
    assert f"{home}/project/.env" in hidden
    held = seatbelt_secrets.held(grants, home)
    assert f"{home}/project/.git" in held
    assert f"{home}/Library/LaunchAgents" not in held  # nobody may write there anyway
    assert f"{home}/project" in seatbelt_secrets.anchors(grants, (*hidden, *held))
    named = (*grants, grant(f"{home}/project/.git", "write"))
    held = seatbelt_secrets.held(named, home)
    assert f"{home}/project/.git" not in held
    assert f"{home}/project/.git/hooks" in held
    assert f"{home}/project/.git/commondir" in held


@pytest.mark.parametrize("kind", ["absent", "file", "link"])
def test_a_repository_cannot_be_put_where_there_is_none(tmp_path, kind):
    """A directory with hooks is made beside it and renamed to .git, or what stands there is made to lead to it."""
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


def test_what_is_held_in_a_grant_inside_of_what_is_held(tmp_path):
    inner = f"{os.path.realpath(tmp_path)}/.claude/plugins"
    os.makedirs(inner)
    grants = (grant(os.path.realpath(tmp_path), "write"), grant(inner, "write"))
    view = replace(ALONE, write=tuple(item.path for item in grants))
    decided = made(replace(view, held=seatbelt_secrets.held(grants, "/Users/nobody")))
    assert decided.allows(Act("file-write-create", f"{inner}/x"))
    assert not decided.allows(Act("file-write-create", f"{inner}/.vscode/tasks.json"))
    assert not decided.allows(Act("file-write-create", f"{os.path.dirname(inner)}/settings.json"))


def test_environment_files_are_hidden_but_for_what_is_published(tmp_path):
    top = os.path.realpath(tmp_path)
    for name in (".env.staging", ".env.example", ".envrc", "x.env"):
        (tmp_path / name).touch()
    hidden = seatbelt_secrets.hidden((grant(top, "read"),), "/Users/nobody")
    assert hidden == (f"{top}/.env", f"{top}/.env.staging")


def test_the_users_own_home_counts_whatever_home_says():
    pwd = pytest.importorskip("pwd")
    own = os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)
    policy = Policy(grants=(grant(own, "read"),))
    view = tier_seatbelt.build_view(
        policy, HOMEBREW, home="/Users/elsewhere", private=PRIVATE, state=""
    )
    assert f"{own}/.ssh" in view.hidden


def test_what_a_grant_names_itself_is_not_hidden_and_nothing_beside_it_is_shown():
    alone = (grant(f"{HOME}/.ssh/config", "read", directory=False), grant(f"{HOME}/x", "read"))
    assert not any(".ssh" in path for path in seatbelt_secrets.hidden(alone, HOME))
    assert f"{HOME}/.ssh" not in seatbelt_secrets.hidden((grant(f"{HOME}/.ssh", "read"),), HOME)
    around = (grant(f"{HOME}/.ssh/config", "read", directory=False), grant(HOME, "read"))
    assert f"{HOME}/.ssh" in seatbelt_secrets.hidden(around, HOME)
    assert seatbelt_secrets.hidden((), HOME) == ()


def test_a_link_to_a_secret_is_hidden_where_it_leads(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".ssh").symlink_to("elsewhere")
    home = os.path.realpath(tmp_path)
    assert f"{home}/elsewhere" in seatbelt_secrets.hidden((grant(home, "read"),), home)


def test_the_view_of_a_run():
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
    assert f"{HOME}/p/server" in view.held  # the server's own files, in what it may write
    assert not made(view).allows(Act("file-write-data", f"{HOME}/p/server/main.py"))
    assert made(view).allows(Act("file-write-data", f"{HOME}/p/data"))


@pytest.mark.parametrize(
    ("real", "bundle"),
    [
        (
            "/Library/Frameworks/Python.framework/Versions/3.12/bin/python3.12",
            "/Library/Frameworks/Python.framework/Versions/3.12/Resources/Python.app/Contents/MacOS/Python",
        ),
        ("/opt/homebrew/bin/node", ""),
        ("/Library/Frameworks/Python.framework/Versions/3.12/bin/pip", ""),
        ("/usr/bin/python3", ""),
    ],
)
def test_what_a_framework_python_executes(real, bundle):
    assert tier_seatbelt.framework_bundle(real) == bundle
    program = Program(path=real, real=real, argv=(real,))
    assert tier_seatbelt.executables(program) == ((real, bundle) if bundle else (real,))


HOMEBREW = Program(
    path="/opt/homebrew/bin/node", real="/opt/homebrew/bin/node", argv=("node",), reads=("/opt/homebrew",)
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["/opt/homebrew", "/usr/local"])
def test_what_services_of_a_package_manager_keep_is_not_the_programs(prefix):
    """Homebrew's databases and settings belong to the user, whose id the target has."""
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


def test_rules_are_for_what_the_kernel_calls_a_file(monkeypatch):
    """On a volume that ignores case: `realpath` keeps what was typed, and what is hidden would be looked for beside it."""
    monkeypatch.setattr(
        seatbelt_paths, "to_kernel_path", lambda path: path.replace("/users/Anna", HOME).replace("library", "Library")
    )  # fmt: skip
    policy = Policy(grants=(grant("/users/Anna/library", "read"),))
    view = tier_seatbelt.build_view(policy, HOMEBREW, home="/users/Anna", private=PRIVATE, state="")
    assert view.read == (f"{HOME}/Library",)
    assert f"{HOME}/Library/Keychains" in view.hidden


def test_elsewhere_a_path_is_spelled_as_it_is():
    assert seatbelt_paths.to_kernel_path("/usr/bin/no such program") == "/usr/bin/no such program"


def test_a_grant_that_was_written_through_a_link_can_be_reached_by_it():
    written = f"{HOME}/link/notes"
    policy = Policy(grants=(replace(grant("/Volumes/x/notes", "read"), written=written),))
    decided = made(tier_seatbelt.build_view(policy, HOMEBREW, home=HOME, private=PRIVATE, state=""))
    for path in (written, f"{HOME}/link"):
        assert decided.allows(Act("file-read-metadata", path))
        assert not decided.allows(Act("file-read-data", path))
    assert not decided.allows(Act("file-read-metadata", f"{HOME}/link/other"))
