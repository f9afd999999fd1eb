"""A limit that is held by looking, by somebody who can no longer look."""

from subprocess import PIPE

from traces import PATIENCE, Traces

LIMIT = ("--allow-subprocess", "--max-cpu-time", "10m")  # of a tree, nothing else counts that
TARGET = "print('ready', flush=True); input()"


def test_a_supervisor_that_has_gone_blind_lets_nothing_run_on(user):
    assert user.run("/bin/true").returncode == 0  # the probes are cached from here on
    traces = Traces(user.home)
    argv = user.corral_argv("run", *LIMIT, "--", user.python, "-c", TARGET, traces.argument)
    with user.popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        blinding = ["prlimit", "--pid", str(process.pid), "--nofile=3:3"]
        assert user.popen(blinding).wait() == 0
        assert process.wait(PATIENCE) == 125
        assert b"could not be read: Too many open files\nhint: " in process.stderr.read()
    assert traces.left() == {}
    assert user.run(user.python, "-c", TARGET, flags=LIMIT, input=b"\n").returncode == 0
