"""Test the home directory in the sandbox for different values of HOME on the host."""

import os

import pytest

WRITE = 'echo x > "$HOME/new" && echo "$HOME $(ls -A "$HOME")"'
INSIDE = {
    "/": "/home/user",
    "/usr": "/home/user",
    "/usr/sbin": "/home/user",
    "/var/lib": "/home/user",
    "/home/user": "/home/corral",
}


@pytest.mark.parametrize("home", INSIDE)
def test_the_targets_home_is_private_even_if_home_names_a_system_directory(user, home):
    """Set HOME to a system directory. Container engines set HOME to `/` for a user without an entry
    in /etc/passwd.
    """
    names = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    elsewhere = {name: str(user.home / name) for name in names}
    environment = user.environment(HOME=home, **elsewhere)
    done = user.run("/bin/sh", "-c", WRITE, flags=("--allow-subprocess",), env=environment)
    assert (done.returncode, done.stdout.decode()) == (0, f"{INSIDE[home]} new\n"), done.stderr


@pytest.mark.parametrize("home", ["", "relative", None])
def test_a_missing_or_relative_home_gives_a_private_home(user, home):
    environment = user.environment() if home is None else user.environment(HOME=home)
    if home is None:
        del environment["HOME"]
    done = user.run("/bin/sh", "-c", WRITE, flags=("--allow-subprocess",), env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"/")
    assert done.stdout.endswith(b" new\n")


def test_a_granted_path_of_the_home_is_reached_by_a_link_in_the_private_home(user):
    notes = user.home / "deep" / "notes"
    notes.mkdir(parents=True)
    (notes / "a").write_text("hello")
    for path in (notes.parent, notes, notes / "a"):
        os.chown(path, user.owner, user.owner)
    code = """
def read(path):
    try:
        return open(os.path.expanduser(path)).read()
    except OSError as error:
        return type(error).__name__
answer = [os.path.expanduser("~"), read("~/deep/notes/a"), read(sys.argv[1])]
"""
    absolute = str(notes / "a")
    assert user.inside(code, absolute, flags=("--read", str(notes))) == [
        "/home/user", "hello", "hello",
    ]  # fmt: skip
    assert user.inside(code, absolute)[1:] == ["FileNotFoundError"] * 2


def test_a_grant_through_a_link_is_found_under_the_path_that_the_user_wrote(user):
    """Grant ~/notes, which is a symlink, as folders of cloud services often are. The target must
    find the files under this path, too.
    """
    real = user.home / "cloud" / "notes"
    (real / "inner").mkdir(parents=True)
    (real / "inner" / "a").write_text("hello")
    (user.home / "notes").symlink_to("cloud/notes")
    (user.home / "above").symlink_to("cloud")
    for path in (real.parent, real, real / "inner", real / "inner" / "a"):
        os.chown(path, user.owner, user.owner)
    code = """
answer = []
for path in sys.argv[1:]:
    try:
        answer.append(open(os.path.expanduser(path)).read())
    except OSError as error:
        answer.append(type(error).__name__)
"""
    names = ("notes/inner/a", "above/notes/inner/a", "cloud/notes/inner/a")
    paths = [f"{home}/{name}" for name in names for home in ("~", user.home)]

    def read(*flags):
        return user.inside(code, *map(str, paths), flags=flags)

    missing = "FileNotFoundError"
    for flag in ("--read", "--write"):
        grants = (flag, str(user.home / "notes"))
        for more in ((), ("--read", str(user.home / "notes" / "inner")), ("--state",)):
            assert read(*grants, *more) == ["hello", "hello", missing, missing, missing, "hello"]
    assert read("--read", str(user.home / "above" / "notes")) == [
        missing,
        missing,
        "hello",
        "hello",
        missing,
        "hello",
    ]
    (real.parent / "again").symlink_to("../notes")
    again = str(user.home / "cloud" / "again")
    assert user.inside(code, f"{again}/inner/a", flags=("--read", again)) == ["hello"]
    # Sanity check: if the real directory is granted, the sandbox does not contain the symlinks.
    assert read("--write", str(user.home / "cloud")) == [
        missing,
        missing,
        missing,
        missing,
        "hello",
        "hello",
    ]


def test_a_write_to_an_ungranted_path_of_the_home_fails(user):
    """Write to ~/Documents, which is not granted. The write must fail. Otherwise the server would
    believe that it has saved a file, but the file would be lost when the run ends.
    """
    documents = user.home / "Documents"
    documents.mkdir()
    os.chown(documents, user.owner, user.owner)
    code = """
try:
    open(sys.argv[1], "w").write("x")
    answer = "written"
except OSError as error:
    answer = type(error).__name__
"""
    path = str(documents / "report")
    assert user.inside(code, path) == "FileNotFoundError"
    assert user.inside(code, path, flags=("--write", str(documents))) == "written"
    assert (documents / "report").read_text() == "x"


def test_a_grant_of_a_path_replaces_the_servers_own_file_in_its_kept_home(user):
    """Let a server write ~/out.txt in the home that it keeps between runs. Then grant the user's
    ~/out.txt. The server must now write to the user's file, and its own file must still exist.
    """
    out = user.home / "out.txt"
    out.touch()
    os.chown(out, user.owner, user.owner)
    code = """
path = os.path.expanduser("~/out.txt")
open(path, "a").write(f"{sys.argv[1]} ")
answer = sorted(os.listdir(os.path.dirname(path)))
"""
    assert "out.txt" in user.inside(code, "run", flags=("--state",))
    assert out.read_text() == ""  # Sanity check: without a grant the server writes to its own file
    names = user.inside(code, "run", flags=("--state", "--write", str(out)))
    assert out.read_text() == "run "
    assert {"out.txt", "out.txt.before-grant"} <= set(names)


@pytest.mark.parametrize("mode", [0, 0o500])
def test_a_server_that_closed_its_kept_home_can_use_it_again(user, mode):
    code = f"""
home = os.path.expanduser("~")
answer = sorted(os.listdir(home))
open(home + "/mine", "w").close()
os.chmod(home, {mode})
"""
    first, *later = [user.inside(code, flags=("--state",)) for _ in range(3)]
    assert "mine" not in first
    assert ["mine" in names for names in later] == [True, True]
