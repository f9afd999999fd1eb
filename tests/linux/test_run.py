"""`corral run` out of the box, as root and as an ordinary user."""


def test_python_runs(user):
    assert user.inside("answer = os.getuid()") not in (None, 0)


def test_node_runs(user):
    done = user.run("node", "-e", "console.log(6 * 7)")
    assert (done.returncode, done.stdout) == (0, b"42\n")


def test_stdin_and_stdout_are_the_targets(user):
    done = user.run("cat", input=b"\x00\xffhello")
    assert (done.returncode, done.stdout) == (0, b"\x00\xffhello")


def test_the_exit_code_is_the_targets_own(user):
    assert user.run(user.python, "-c", "raise SystemExit(7)").returncode == 7


def test_a_signal_becomes_128_plus_its_number(user):
    assert user.run(user.python, "-c", "import os; os.kill(os.getpid(), 11)").returncode == 139
