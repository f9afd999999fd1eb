"""Test that corral ends a run with a sampled limit if the supervisor can no longer read /proc."""

from subprocess import PIPE

from traces import PATIENCE, Traces

# On every host, corral enforces a limit on the CPU time of a whole run by sampling.
LIMIT = ("--allow-subprocess", "--max-cpu-time", "10m")
TARGET = "print('ready', flush=True); input()"


def test_a_supervisor_that_cannot_read_proc_ends_the_run(user):
    assert user.run("/bin/true").returncode == 0  # this run caches the findings
    traces = Traces(user.home)
    argv = user.corral_argv("run", *LIMIT, "--", user.python, "-c", TARGET, traces.argument)
    with user.popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        # With a limit of 8 descriptors the supervisor cannot open files in /proc. With a lower
        # limit even poll(2) would fail.
        blinding = ["prlimit", "--pid", str(process.pid), "--nofile=8:8"]
        assert user.popen(blinding).wait() == 0
        assert process.wait(PATIENCE) == 125
        assert b"Too many open files\nhint: " in process.stderr.read()
    assert traces.left() == {}
    assert user.run(user.python, "-c", TARGET, flags=LIMIT, input=b"\n").returncode == 0
