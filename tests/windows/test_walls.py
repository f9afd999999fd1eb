"""Try forbidden acts in the sandbox on real Windows. Every act that is denied in the sandbox
succeeds outside of it. The tests use only the command line, so they do not depend on corral's code.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import textwrap
import uuid

import pytest

from windows.conftest import PYTHON

if sys.platform == "win32":
    import winreg

pytestmark = [
    pytest.mark.real_windows(reason="it has no AppContainers"),
    # The timeout is long, because the first run copies the runtime into corral's store.
    pytest.mark.timeout(600),
]
PATIENCE = 300
RUN_KEY = "Software\\Microsoft\\Windows\\CurrentVersion\\Run"
MMC20_APPLICATION = "{49B2791A-B1AE-4C90-9B8E-E860BA07F889}"
PROCESS_VM_READ = 0x10


def attempt(act: str) -> str:
    """Return the source of a program that tries an act, and sets `answer` to "done" or to the error
    from Windows.
    """
    body = textwrap.indent(textwrap.dedent(act), "    ")
    return f"try:\n{body}\nexcept OSError as error:\n    answer = f'denied: {{error}}'\nelse:\n    answer = 'done'"


def denied(corral, act: str, *arguments: str, flags: tuple[str, ...] = ()) -> bool:
    found = corral.inside(attempt(act), *arguments, flags=flags, timeout=PATIENCE)
    assert isinstance(found, str)
    assert found == "done" or found.startswith("denied: ")
    return found != "done"


def succeeds(corral, act: str, *arguments: str) -> bool:
    return corral.outside(attempt(act), *arguments) == "done"


@pytest.fixture
def name() -> str:
    return f"corral-test-{uuid.uuid4().hex}"


@pytest.fixture
def secret(name):
    """Make a file in the user's profile that is not granted to the target."""
    folder = pathlib.Path.home() / name
    folder.mkdir()
    path = folder / "file"
    path.write_text("secret")
    yield path
    shutil.rmtree(folder)


READ = "open(sys.argv[1]).read()"
APPEND = "open(sys.argv[1], 'a').close()"


def test_the_users_profile_is_not_readable(corral, secret):
    assert denied(corral, READ, str(secret))
    assert not denied(corral, READ, str(secret), flags=("--read", str(secret)))
    assert succeeds(corral, READ, str(secret))


@pytest.mark.parametrize(
    "form",
    ["\\\\?\\{}", "\\\\.\\{}", "\\\\localhost\\{share}", "\\\\127.0.0.1\\{share}", "{}::$DATA"],
)
def test_other_spellings_of_a_path_give_no_access(corral, secret, form):
    """Try device paths, the administrative share and the name of the default stream (`::$DATA`)."""
    share = str(secret).replace(":", "$", 1)
    path = form.format(secret, share=share)
    if not succeeds(corral, READ, path):
        pytest.skip(f"{path} cannot be opened without walls either")
    assert denied(corral, READ, path)


def test_the_users_files_are_not_writable(corral, secret):
    assert denied(corral, APPEND, str(secret))
    assert denied(corral, APPEND, str(secret), flags=("--read", str(secret)))
    assert succeeds(corral, APPEND, str(secret))


def test_corrals_own_code_is_not_writable(corral):
    import corral as package

    assert denied(corral, APPEND, package.__file__)
    assert succeeds(corral, APPEND, package.__file__)


def test_a_read_grant_does_not_allow_writing_alternate_data_streams(corral, tmp_path):
    file = tmp_path / "file"
    file.write_text("content")
    stream = f"{file}:hidden"
    assert denied(corral, APPEND, stream, flags=("--read", str(tmp_path)))
    assert not denied(corral, APPEND, stream, flags=("--write", str(tmp_path)))


def test_a_junction_made_inside_gives_no_access(corral, secret, tmp_path):
    act = """
    import _winapi
    _winapi.CreateJunction(os.path.dirname(sys.argv[1]), sys.argv[2])
    open(os.path.join(sys.argv[2], os.path.basename(sys.argv[1]))).read()
    """
    within, without = str(tmp_path / "within"), str(tmp_path / "without")
    assert denied(corral, act, str(secret), within, flags=("--write", str(tmp_path)))
    assert succeeds(corral, act, str(secret), without)


def test_an_existing_junction_gives_no_access(corral, secret, tmp_path):
    import _winapi

    granted = tmp_path / "granted"
    granted.mkdir()
    _winapi.CreateJunction(str(secret.parent), str(granted / "junction"))
    path = str(granted / "junction" / secret.name)
    assert succeeds(corral, READ, path)
    done = corral.run(
        *(PYTHON, "-c", "import sys; print(open(sys.argv[1]).read())", path),
        flags=("--read", str(granted)),
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert b"secret" not in done.stdout


def test_an_ungranted_file_cannot_be_hard_linked(corral, secret, tmp_path):
    act = "os.link(sys.argv[1], sys.argv[2])"
    within, without = str(tmp_path / "within"), str(tmp_path / "without")
    assert denied(corral, act, str(secret), within, flags=("--write", str(tmp_path)))
    assert succeeds(corral, act, str(secret), without)


def test_an_existing_hard_link_gives_no_access_to_its_other_name(corral, secret, tmp_path):
    """Try to write through a hard link in a granted directory. Both names of the file share one
    security descriptor, so a grant for the first name would also apply to the second name.
    """
    granted = tmp_path / "granted"
    granted.mkdir()
    os.link(secret, granted / "link")
    code = "import sys; open(sys.argv[1], 'w').write('changed')"
    link = str(granted / "link")
    done = corral.run(
        *(PYTHON, "-c", code, link), flags=("--write", str(granted)), timeout=PATIENCE
    )
    assert done.returncode != 0
    assert secret.read_text() == "secret"
    assert succeeds(corral, APPEND, link)


def test_other_processes_cannot_be_opened(corral):
    act = f"""
    import ctypes
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    if not kernel32.OpenProcess({PROCESS_VM_READ}, 0, int(sys.argv[1])):
        raise ctypes.WinError(ctypes.get_last_error())
    """
    assert denied(corral, act, str(os.getpid()))
    assert succeeds(corral, act, str(os.getpid()))


def test_other_processes_cannot_be_ended(corral):
    act = "os.kill(int(sys.argv[1]), 9)"
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code]) as victim:
        assert denied(corral, act, str(victim.pid))
        assert victim.poll() is None
        assert succeeds(corral, act, str(victim.pid))


def test_a_named_pipe_of_the_host_cannot_be_opened(corral, name):
    path = f"\\\\.\\pipe\\{name}"
    act = "open(sys.argv[1], 'r+b', buffering=0).close()"
    with multiprocessing.connection.Listener(path, "AF_PIPE"):
        assert denied(corral, act, path)
        assert succeeds(corral, act, path)


def test_loopback_of_the_host_cannot_be_reached(corral):
    act = """
    import socket
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20).close()
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert denied(corral, act, port)
        assert succeeds(corral, act, port)


def test_names_cannot_be_looked_up(corral):
    act = "import socket; socket.getaddrinfo('example.com', 443)"
    if not succeeds(corral, act):
        pytest.skip("there is no name service without walls either")
    assert denied(corral, act)


def test_the_target_cannot_start_a_program_at_the_next_logon(corral, name):
    act = f"""
    import winreg
    with winreg.OpenKey(winreg.HKEY_CURRENT_USER, {RUN_KEY!r}, 0, winreg.KEY_SET_VALUE) as key:
        winreg.SetValueEx(key, sys.argv[1], 0, winreg.REG_SZ, "notepad.exe")
    """
    assert denied(corral, act, name)
    with winreg.OpenKey(winreg.HKEY_CURRENT_USER, RUN_KEY, 0, winreg.KEY_ALL_ACCESS) as key:
        with pytest.raises(FileNotFoundError):
            winreg.QueryValueEx(key, name)
        assert succeeds(corral, act, name)
        winreg.DeleteValue(key, name)


def test_the_target_cannot_create_a_scheduled_task(corral, name):
    act = """
    import subprocess
    task = ["schtasks", "/Create", "/TN", sys.argv[1], "/TR", "notepad.exe", "/SC", "ONCE", "/ST", "23:59"]
    if subprocess.run(task, stdin=subprocess.PIPE).returncode:
        raise OSError("schtasks failed")
    """
    delete = ["schtasks", "/Delete", "/TN", name, "/F"]
    assert denied(corral, act, name, flags=("--allow-subprocess",))
    assert subprocess.run(delete, check=False).returncode != 0
    assert succeeds(corral, act, name)
    subprocess.run(delete, check=True)


def test_the_target_cannot_start_a_com_server_outside_the_sandbox(corral):
    """Check that the target cannot start a COM server, which would run outside of the sandbox and
    start any program for the target.
    """
    act = f"""
    import ctypes, uuid
    local_server, made = 4, ctypes.c_void_p()
    kind = uuid.UUID("{MMC20_APPLICATION}").bytes_le
    unknown = uuid.UUID("00000000-0000-0000-C000-000000000046").bytes_le
    ctypes.oledll.ole32.CoInitialize(None)
    ctypes.oledll.ole32.CoCreateInstance(kind, None, local_server, unknown, ctypes.byref(made))
    """
    if not succeeds(corral, act):
        pytest.skip("MMC20.Application does not start without walls either")
    assert denied(corral, act)


START = "import subprocess; subprocess.Popen([sys.executable, '-c', ''], creationflags={}).wait()"


def test_no_process_is_started_unless_allowed(corral):
    assert denied(corral, START.format(0))
    assert not denied(corral, START.format(0), flags=("--allow-subprocess",))


def test_a_process_cannot_break_away_from_the_job(corral):
    away = START.format("subprocess.CREATE_BREAKAWAY_FROM_JOB")
    assert denied(corral, away, flags=("--allow-subprocess",))
    assert not denied(corral, START.format(0), flags=("--allow-subprocess",))


def test_a_detached_process_does_not_outlive_the_run(corral):
    code = """
import subprocess
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
answer = subprocess.Popen(sleeper, creationflags=subprocess.DETACHED_PROCESS).pid
"""
    running = "os.kill(int(sys.argv[1]), 9)"
    inside = corral.inside(code, flags=("--allow-subprocess",), timeout=PATIENCE)
    assert not succeeds(corral, running, str(inside))
    outside = corral.outside(code)
    assert succeeds(corral, running, str(outside))


def test_a_target_starts_without_a_stdin(corral):
    """Start corral with NUL as stdin. The target must get another stdin, because some builds of
    Windows deny NUL to AppContainers.
    """
    argv = corral.argv("run", "--", PYTHON, "-c", "import sys; print(sys.stdin.read() == '')")
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout.split()) == (0, [b"True"]), done.stderr


def test_the_raw_disk_cannot_be_opened(corral):
    act = "open('\\\\\\\\.\\\\PhysicalDrive0', 'rb', buffering=0).close()"
    if not succeeds(corral, act):
        pytest.skip("only administrators can open it without walls")
    assert denied(corral, act)
