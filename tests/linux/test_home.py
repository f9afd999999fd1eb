"""A home inside, wherever the caller's is said to be."""

import pytest

WRITE = 'echo x > "$HOME/new" && echo "$HOME $(ls -A "$HOME")"'
INSIDE = {
    "/": "/home/user",
    "/usr": "/home/user",
    "/usr/sbin": "/home/user",
    "/var/lib": "/var/lib",
}


@pytest.mark.parametrize("home", INSIDE)
def test_a_home_where_the_system_is(user, home):
    """Containers start users that they do not know with HOME=/."""
    names = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    elsewhere = {name: str(user.home / name) for name in names}
    environment = user.environment(HOME=home, **elsewhere)
    done = user.run("/bin/sh", "-c", WRITE, flags=("--allow-subprocess",), env=environment)
    assert (done.returncode, done.stdout.decode()) == (0, f"{INSIDE[home]} new\n"), done.stderr


@pytest.mark.parametrize("home", ["", "relative", None])
def test_a_home_that_is_no_absolute_path(user, home):
    environment = user.environment() if home is None else user.environment(HOME=home)
    if home is None:
        del environment["HOME"]
    done = user.run("/bin/sh", "-c", WRITE, flags=("--allow-subprocess",), env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"/")
    assert done.stdout.endswith(b" new\n")
