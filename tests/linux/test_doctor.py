"""Test that `corral doctor` reports missing features of the kernel, and that `run` then uses other
walls or refuses to start.

The features are really missing: a seccomp filter like a container's denies them, or the test runs
in a user namespace in which no further namespaces can be created.
"""

import errno
import json
import os
import re

import pytest

from corral.platforms.linux.probes import host as probes
from corral.platforms.linux.probes import namespaces

WITHOUT = """
import ctypes, os, struct, sys
sys.path.insert(0, sys.argv[1])
from corral.abi.linux_syscalls import TABLES
numbers = TABLES[os.uname().machine]
NEWUSER = 0x10000000

def op(code, jt, jf, k):
    return struct.pack("=HBBI", code, jt, jf, k)

def deny(name, number, *, flag=0):
    refuse = op(0x06, 0, 0, 0x00050000 | number)
    if not flag:
        return op(0x15, 0, 1, numbers[name]) + refuse
    # Refuse the call only if its first argument has the flag. Otherwise load the call number again, for the next rule.
    return (op(0x15, 0, 4, numbers[name]) + op(0x20, 0, 0, 16) + op(0x45, 0, 1, flag) + refuse
            + op(0x20, 0, 0, 0))

program = op(0x20, 0, 0, 0)
for rule in sys.argv[2].split(","):
    name, _, number = rule.partition("=")
    name, _, flagged = name.partition("+")
    program += deny(name, int(number), flag=NEWUSER if flagged else 0)
program += op(0x06, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(program, len(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
assert libc.prctl(22, 2, fprog) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[3], sys.argv[3:])
"""
NO_NAMESPACES = (
    f"unshare={errno.EPERM},clone+newuser={errno.EPERM},clone3={errno.ENOSYS},"
    f"mount={errno.EPERM},setns={errno.EPERM}"
)
"""The errors that default filters of container engines return to a process without CAP_SYS_ADMIN."""
NO_LANDLOCK = f"landlock_create_ruleset={errno.ENOSYS}"
LANDLOCK_OFF = f"landlock_create_ruleset={errno.EOPNOTSUPP}"
NESTED = """
import ctypes, os, sys
uid, gid = os.getuid(), os.getgid()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
write("/proc/self/setgroups", "deny")
write("/proc/self/uid_map", f"{uid} {uid} 1")
write("/proc/self/gid_map", f"{gid} {gid} 1")
write("/proc/sys/user/max_user_namespaces", "0")
os.execv(sys.argv[1], sys.argv[1:])
"""


class Place:
    """An environment in which corral runs: the plain host, or a host without some features."""

    def __init__(self, user, wrapper: list[str], home) -> None:
        self.user = user
        self.wrapper = wrapper
        self.home = home

    def corral(self, *arguments: str):
        process = self.user.popen(
            [*self.wrapper, *self.user.corral_argv(*arguments)],
            env=self.user.environment(HOME=str(self.home)),
            stdin=-3,
            stdout=-1,
            stderr=-1,
        )
        out, err = process.communicate(timeout=60)
        assert b"Traceback" not in err, err.decode()
        return process.returncode, out.decode(), err.decode()

    def findings(self) -> dict[str, dict[str, str]]:
        code, out, err = self.corral("doctor", "--json")
        assert code == 0, err
        return {item["capability"]: item for item in json.loads(out)["findings"]}

    def mechanisms(self) -> dict[str, str] | None:
        """Return the mechanism of each control from `explain`, or None if corral refuses the
        run.
        """
        code, out, _ = self.corral("explain", "--json", "--", "/bin/true")
        if code:
            assert code == 125
            return None
        return {held["control"]: held["mechanism"] for held in json.loads(out)["controls"]}


@pytest.fixture
def host(user, scratch):
    return Place(user, [], scratch)


@pytest.fixture
def without(user, scratch):
    def place(*rules: str) -> Place:
        wrapper = [user.python, "-c", WITHOUT, str(user.package), ",".join(rules), user.python]
        return Place(user, wrapper[:-1], scratch)

    return place


@pytest.fixture
def nested(user, scratch):
    return Place(user, [user.python, "-c", NESTED], scratch)


LINE = re.compile(r"\[(✓|!|⚠)\] \S.*|      \S.*")


def test_every_line_has_the_same_form(host):
    code, out, err = host.corral("doctor")
    assert (code, err) == (0, "")
    assert all(LINE.fullmatch(line) for line in out.splitlines()), out
    first = out.splitlines()[0]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    assert first == f"[✓] OS: linux ({machine})"
    assert re.search(r"^\[(✓|!)\] Cgroups v2: ", out, re.MULTILINE)
    assert "[✓] Network namespaces: available" in out
    assert "[✓] Seccomp: available" in out
    assert "[✓] Rlimits: supported" in out
    # Two mechanisms limit processes. Each has its own line, so there is no line "Process limit".
    assert "Process limit: " not in out
    verdict = "[✓] Verdict: `corral run` works here, and every wall is enforced"
    assert out.splitlines()[-1].startswith(verdict)


def test_every_absent_feature_has_a_hint(host):
    """Check that `doctor` shows the hint for each absent feature, as text and as JSON."""
    hints = {item["hint"] for item in host.findings().values() if item["status"] != "proven"}
    text = host.corral("doctor")[1]
    assert all(f"      hint: {hint}" in text for hint in hints)


def test_a_missing_temporary_directory_is_not_reported_as_a_missing_namespace(user, scratch):
    """Hide the temporary directory that the probe of mount namespaces needs. `doctor` must name the
    directory, and must not cache the finding, because the directory may be back at the next run.
    """
    place = Place(user, [], scratch)
    hidden = "import os, sys, tempfile; tempfile.tempdir = None; tempfile._candidate_tempdir_list = lambda: ['/nowhere']; "
    code = (
        hidden
        + "sys.path.insert(0, sys.argv.pop(1)); from corral.cli import main; sys.exit(main())"
    )
    argv = [user.python, "-c", code, str(user.package), "doctor", "--json"]
    env = user.environment(HOME=str(scratch))
    process = user.popen(argv, env=env, stdin=-3, stdout=-1, stderr=-1)
    out, err = process.communicate(timeout=60)
    found = {item["capability"]: item for item in json.loads(out)["findings"]}
    assert found["mount_namespace"]["status"] == "unknown", err
    assert found["mount_namespace"]["hint"].startswith("make /tmp writable")
    assert place.corral("run", "--", "/bin/echo", "ran")[:2] == (0, "ran\n")
    # Sanity check: with a temporary directory, the probe proves mount namespaces.
    assert place.findings()["mount_namespace"]["status"] == "proven"


def test_verbose_adds_the_evidence(host):
    plain, verbose = host.corral("doctor")[1], host.corral("doctor", "-v")[1]
    evidence = [item["evidence"] for item in host.findings().values() if item["status"] == "proven"]
    assert any(text in verbose for text in evidence)
    assert not any(text in plain for text in evidence)


def test_json_has_the_promised_shape(host):
    code, out, _ = host.corral("doctor", "--json")
    data = json.loads(out)
    assert code == 0
    assert list(data) == ["version", "corral", "os", "arch", "works", "verdict", "findings"]
    assert data["os"] == "linux"
    assert all(
        list(item) == ["capability", "status", "evidence", "hint"] for item in data["findings"]
    )
    assert {item["status"] for item in data["findings"]} <= {"proven", "absent", "unknown"}
    assert all(item["evidence"] for item in data["findings"])
    names = [item["capability"] for item in data["findings"]]
    assert len(set(names)) == len(names)


SOME = """
sys.path.insert(0, sys.argv[1])
from corral.platforms.linux.probes import namespaces, seccomp
found = (*namespaces.probe(), seccomp.deny_call.find())
answer = {item.capability: item.status for item in found}
"""


@pytest.mark.parametrize(
    ("call", "unproven"),
    [
        ("connect", {"mount_namespace", "pid_namespace", "network_namespace", "private_space"}),
        (
            "ioctl",
            {"mount_namespace", "pid_namespace", "network_namespace", "private_space", "seccomp"},
        ),
    ],
)
def test_an_act_that_fails_outside_the_sandbox_too_proves_no_wall(user, call, unproven):
    """Deny a system call to every process. An act that a probe tries then fails outside the sandbox
    as well as inside, so its failure inside must not count as proof of a wall.
    """
    proven = user.outside(SOME, str(user.package))
    assert set(proven.values()) == {"proven"}
    place = [user.python, "-c", WITHOUT, str(user.package), f"{call}={errno.EPERM}"]
    found = user.outside(SOME, str(user.package), host=place)
    assert {name for name, status in found.items() if status == "absent"} == unproven


def test_doctor_takes_no_arguments(host):
    code, _, err = host.corral("doctor", "surplus")
    assert code == 2
    assert "surplus" in err


def check_no_namespaces(place: Place) -> None:
    """Check that doctor reports evidence and a hint for each missing namespace, and that `run` uses
    Landlock instead. Without Landlock, `run` must refuse to start.
    """
    found = place.findings()
    for name in ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace"):
        assert found[name]["status"] == "absent", found[name]
        assert found[name]["evidence"]
        assert found[name]["hint"]
    text = place.corral("doctor")[1]
    assert "[!] User namespaces: NOT available (" in text
    assert "[!] Network namespaces: NOT available (" in text
    mechanisms = place.mechanisms()
    code, out, err = place.corral("run", "--", "/bin/echo", "ran")
    if found["landlock_wall"]["status"] != "proven":
        assert mechanisms is None
        assert (code, out) == (125, "")
        assert "filesystem: " in err
        assert "hint: " in err
    else:
        assert (code, out) == (0, "ran\n"), err
        assert mechanisms["filesystem"] in {"landlock", "landlock + notification"}
        assert not any("namespace" in words for words in mechanisms.values()), mechanisms


def test_doctor_is_right_where_namespaces_are_filtered(without):
    check_no_namespaces(without(NO_NAMESPACES))


def test_doctor_is_right_where_no_user_namespace_can_be_made(nested):
    check_no_namespaces(nested)


def test_a_working_filter_is_proven_where_the_host_denies_namespaces(without):
    """Probe under a container's seccomp filter, which already denies some calls. To prove that
    corral's own filter works, the probe must try a call that the container's filter allows.
    """
    found = without(NO_NAMESPACES).findings()
    assert found["seccomp"]["status"] == "proven", found["seccomp"]
    assert found["exec_cookie"]["status"] == "proven", found["exec_cookie"]


def test_a_run_inside_a_run_names_the_sandbox_around_it_as_the_cause(user):
    inner = user.corral_argv("run", "--", "/bin/true")
    flags = ("--allow-subprocess", "--read", str(user.package))
    done = user.run(*inner, flags=flags)
    assert done.returncode == 125
    assert b"a sandbox around corral denies TIOCSTI already" in done.stderr
    assert b"hint: start corral outside this sandbox; `corral doctor -v`" in done.stderr
    assert b"CONFIG_SECCOMP" not in done.stderr
    assert user.run("/bin/true").returncode == 0


@pytest.mark.parametrize("rule", [NO_LANDLOCK, LANDLOCK_OFF], ids=["unknown", "off"])
def test_doctor_is_right_where_landlock_is_missing(without, rule):
    place = without(rule)
    found = place.findings()["landlock"]
    assert found["status"] == "absent"
    assert found["evidence"]
    assert found["hint"]
    code, out, err = place.corral("run", "--", "/bin/echo", "ran")
    assert (code, out) == (0, "ran\n"), err
    assert place.mechanisms()["filesystem"] == "namespaces + pivot_root"


def test_a_missing_landlock_is_not_reported_as_missing_namespaces(without):
    found = without(NO_LANDLOCK).findings()
    assert found["user_namespaces"]["status"] == "proven", found["user_namespaces"]
    assert found["mount_namespace"]["status"] == "proven", found["mount_namespace"]


def test_run_refuses_on_a_host_without_namespaces_and_landlock(without):
    place = without(NO_NAMESPACES, NO_LANDLOCK)
    assert place.mechanisms() is None
    code, out, err = place.corral("run", "--", "/bin/echo", "ran")
    assert (code, out) == (125, "")
    assert "this host cannot enforce" in err
    assert "filesystem: " in err
    assert "hint: " in err
    told = place.corral("doctor")[1]
    assert "[⚠] Recommendation: " in told
    assert told.splitlines()[-1].startswith("[!] Verdict: `corral run` refuses here: nothing enfo")


def test_best_effort_drops_one_wall_with_a_warning(without):
    """Run with `--best-effort` where one wall is missing. The target must run, corral must warn
    about the wall, and all other controls must be enforced.
    """
    place = without(NO_NAMESPACES, NO_LANDLOCK)
    code, out, err = place.corral("run", "--best-effort", "--", "/bin/echo", "ran")
    assert (code, out) == (0, "ran\n"), err
    assert "warning: filesystem is not enforced" in err
    told = json.loads(place.corral("explain", "--json", "--best-effort", "--", "/bin/true")[1])
    status = {held["control"]: held["status"] for held in told["controls"]}
    assert status["filesystem"] == "degraded"
    assert (status["network"], status["syscalls"]) == ("verified", "verified")


def test_findings_of_one_context_are_not_used_in_another(host, without):
    """Run on the host, under a filter, and on the host again, always with the same cache. A run
    must not use findings that were made under a different filter.
    """
    assert host.corral("run", "--", "/bin/echo", "ran")[:2] == (0, "ran\n")
    walled = host.mechanisms()
    place = without(NO_NAMESPACES, NO_LANDLOCK)
    assert place.corral("run", "--", "/bin/echo", "ran")[:2] == (125, "")
    assert host.corral("run", "--", "/bin/echo", "ran")[:2] == (0, "ran\n")
    assert host.mechanisms() == walled
    assert place.mechanisms() is None


def test_a_cache_from_a_similar_context_never_weakens_a_run(without, user, scratch):
    """Run under two seccomp filters: one permits only namespaces, the other only Landlock. No run
    may use findings that were cached under the other filter, although the kernel does not say which
    calls a filter denies.
    """
    secret = scratch / "secret"
    secret.write_text("a secret\n")
    os.chown(secret, user.uid, user.uid)
    read = ("/bin/sh", "-c", f"echo ran; read line < '{secret}' && echo $line")
    spaces, landlock = without(LANDLOCK_OFF), without(NO_NAMESPACES)
    for place in (spaces, landlock, spaces):  # at the last run, findings of both are in the cache
        held = place.mechanisms()["filesystem"]
        assert ("landlock" in held, "namespaces" in held) == (place is landlock, place is spaces)
        code, out, err = place.corral("run", "--", *read)
        assert (bool(code), out) == (True, "ran\n"), err
    # Sanity check: without a sandbox the same command reads the secret.
    with user.popen([*read], stdout=-1) as process:
        assert process.communicate(timeout=60)[0] == b"ran\na secret\n"
    assert spaces.findings()["landlock"]["status"] == "absent"
    assert landlock.findings()["user_namespaces"]["status"] == "absent"


def test_a_cache_that_was_tampered_with_is_not_read(host):
    assert host.corral("run", "--", "/bin/true")[0] == 0
    cached = [path for path in host.home.rglob("*") if path.is_file() and "findings" in str(path)]
    assert cached
    for path in cached:
        path.write_text("another key\nuser_namespaces\tproven\tmade up\t\n")
    assert host.corral("run", "--", "/bin/echo", "ran")[:2] == (0, "ran\n")
    assert not any(path.read_text().startswith("another key") for path in cached)


@pytest.mark.parametrize("content", ["", "\n", "garbage", "\x00" * 100, "{}"])
def test_a_broken_cache_only_causes_a_new_probe(host, content):
    host.corral("run", "--", "/bin/true")
    for path in host.home.rglob("*"):
        if path.is_file():
            key = path.read_text(errors="replace").partition("\n")[0]
            path.write_text(content if content != "garbage" else f"{key}\ngarbage without fields\n")
    code, out, err = host.corral("run", "--", "/bin/echo", "ran")
    assert (code, out) == (0, "ran\n"), err


def test_the_cache_is_private(host):
    host.corral("doctor")
    directories = [
        path for path in host.home.rglob("*") if path.is_dir() and path.name == "findings"
    ]
    assert directories
    assert all(path.stat().st_mode & 0o077 == 0 for path in directories)


def test_a_hint_about_the_kernel_says_that_a_newer_one_is_needed():
    """Check that each hint that names a version of Linux starts with "a newer kernel". A hint that
    is only a version would look like a command to type.
    """
    hints = [namespaces.NEWER, *(one.hint for one in probes.PROBES)]
    named = [hint for hint in hints if re.search(r"Linux \d", hint)]
    assert len(named) > 5
    assert [hint for hint in named if not hint.startswith("a newer kernel")] == []
