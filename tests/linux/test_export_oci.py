"""Test `corral export oci`: its files, its refusals, and its bundles in a real runc."""

import json
import os
import pathlib
import shutil
import tempfile

import pytest

REFUSED = 125
TRY = """
import json, os, socket, subprocess, sys, threading
def tried(act, *words):
    try: act(*words)
    except OSError as error: return type(error).__name__
    return "done"
ran = []
thread = threading.Thread(target=lambda: ran.append(1)); thread.start(); thread.join()
print(json.dumps({
    "secret": tried(open, sys.argv[1]), "granted": tried(open, sys.argv[2]),
    "write": tried(open, sys.argv[2], "a"), "system": tried(open, "/usr/x", "w"),
    "own": tried(open, os.path.expanduser("~/x"), "w"), "thread": len(ran),
    "process": tried(subprocess.run, ["/bin/true"]),
    "network": tried(socket.create_connection, ("127.0.0.1", int(sys.argv[3])), 5),
    "unix": tried(socket.socket, socket.AF_UNIX), "mount": tried(os.chroot, "/"),
    "root": sorted(os.listdir("/")), "uid_map": open("/proc/self/uid_map").read().split(),
    "status": dict(line.split(":\\t") for line in open("/proc/self/status").read().split("\\n")
                   if line.startswith(("CapEff", "NoNewPrivs", "Seccomp:"))),
}))
"""


@pytest.fixture
def scratch(user):
    """Yield a directory that the target of a bundle can enter. The directory belongs to the
    target's user, because the target is never root, even if root runs the bundle.
    """
    path = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="corral-export-"))
    path.chmod(0o755)
    os.chown(path, user.owner, user.owner)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def files(user, scratch):
    granted, secret = scratch / "granted.txt", scratch / "secret.txt"
    for path in (granted, secret):
        path.write_text("text")
        path.chmod(0o644)
        os.chown(path, user.owner, user.owner)
    scratch.chmod(0o755)
    return granted, secret


def export(user, scratch, *words):
    done = user.corral("export", "oci", "-o", str(scratch / "bundle"), *words)
    return done, scratch / "bundle"


def start(user, scratch, bundle) -> dict:
    name = f"corral-test-{os.getpid()}-{user.name}"
    argv = ["runc", "--root", str(scratch / "runc"), "run", "-b", str(bundle), name]
    process = user.popen(argv, stdin=-3, stdout=-1, stderr=-1)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


@pytest.mark.rig("runc")
def test_a_bundle_runs_behind_the_same_walls(user, scratch, files):
    """Try forbidden acts in an exported bundle. Sanity checks: a granted file can be read, the home
    is writable, and threads can be started.
    """
    import socket

    granted, secret = files
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        words = ("--read", str(granted), "--", "/usr/bin/python3", "-c", TRY)
        done, bundle = export(user, scratch, *words, str(secret), str(granted), str(port))
        assert done.returncode == 0, done.stderr.decode()
        found = start(user, scratch, bundle)
    assert (found["granted"], found["own"], found["thread"]) == ("done", "done", 1)
    assert found["secret"] == "FileNotFoundError"
    assert found["write"] in {"OSError", "PermissionError"}
    assert found["system"] == "OSError"
    assert found["network"] == "ConnectionRefusedError"
    for act in ("process", "unix", "mount"):
        assert found[act] in {"OSError", "PermissionError"}, act
    assert found["uid_map"][1] != "0"
    assert int(found["status"]["CapEff"], 16) == 0
    assert found["status"]["NoNewPrivs"] == "1"
    assert found["status"]["Seccomp"] == "2"
    assert not {"root", "mnt", "srv", "boot"} & set(found["root"]) - {"root"}


@pytest.mark.rig("runc")
def test_a_bundle_starts_processes_only_if_allowed(user, scratch, files):
    granted, secret = files
    words = ("--allow-subprocess", "--", "/usr/bin/python3", "-c", TRY, str(secret), str(granted))
    done, bundle = export(user, scratch, *words, "9")
    assert done.returncode == 0, done.stderr.decode()
    assert start(user, scratch, bundle)["process"] == "done"


def test_the_configuration_contains_the_policy(user, scratch):
    flags = ("--max-fds", "99", "--max-disk", "10M")
    done, bundle = export(user, scratch, *flags, "--", "/usr/bin/python3", "-c", "1")
    assert done.returncode == 0, done.stderr.decode()
    config = json.loads((bundle / "config.json").read_text())
    assert {"type": "RLIMIT_NOFILE", "hard": 99, "soft": 99} in config["process"]["rlimits"]
    assert all(not names for names in config["process"]["capabilities"].values())
    private = [one for one in config["mounts"] if one["destination"] == "/tmp"]
    assert "size=10485760" in private[0]["options"]
    assert config["root"]["readonly"] is True
    assert ("resources" in config["linux"]) == (user.name == "root")


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--allow-net", "example.com"), b"a bundle cannot allow hosts"),
        (("--timeout", "5m"), b"a runtime has no timeout"),
    ],
)
def test_controls_that_no_runtime_enforces_are_refused(user, scratch, flags, what):
    done, bundle = export(user, scratch, *flags, "--", "/bin/true")
    assert done.returncode == REFUSED
    assert what in done.stderr
    assert not bundle.exists()


def test_without_root_a_memory_limit_is_refused(user, scratch):
    done, bundle = export(user, scratch, "--max-memory", "512M", "--", "/bin/true")
    # Sanity check: for root the export succeeds, because root's runtime makes a cgroup.
    if user.name == "root":
        assert done.returncode == 0, done.stderr.decode()
        limit = json.loads((bundle / "config.json").read_text())["linux"]["resources"]["memory"]
        assert limit["limit"] == 512 << 20
    else:
        assert done.returncode == REFUSED
        assert b"a runtime without root has no cgroup" in done.stderr


def test_no_bundle_file_contains_a_secret(user, scratch):
    variables = {"MY_TOKEN": "s3cret-value"}
    where = str(scratch / "bundle")
    words = ("export", "oci", "-o", where, "--secret", "MY_TOKEN", "--", "/bin/true")
    done = user.corral(*words, env={**user.environment(), **variables})
    assert done.returncode == 0, done.stderr.decode()
    assert b"MY_TOKEN" in done.stderr
    texts = [path.read_bytes() for path in pathlib.Path(where).rglob("*") if path.is_file()]
    assert not any(b"s3cret-value" in text for text in texts)


def test_force_replaces_only_a_bundle(user, scratch):
    words = ("--", "/bin/true")
    assert export(user, scratch, *words)[0].returncode == 0
    done, bundle = export(user, scratch, *words)
    assert done.returncode == REFUSED
    assert b"hint: --force" in done.stderr
    assert export(user, scratch, "--force", *words)[0].returncode == 0
    (bundle / "mine.txt").write_text("keep")
    done, _ = export(user, scratch, "--force", *words)
    assert done.returncode == REFUSED
    assert (bundle / "mine.txt").read_text() == "keep"
    assert [path.name for path in scratch.iterdir() if path.name.startswith("bundle")] == ["bundle"]


def test_bad_arguments_are_usage_errors(ordinary):
    for words in (("export",), ("export", "docker"), ("export", "oci", "--", "/bin/true")):
        done = ordinary.corral(*words)
        assert done.returncode == 2, words
        assert b"hint: " in done.stderr
