"""Have CommandLineToArgvW, a C runtime and cmd.exe parse corral's command lines, and compare the
arguments.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys

import pytest

from corral.abi import win32
from corral.errors import CommandError
from corral.programs.windows_command_line import environment_block, quoted, start_line

CommandLineToArgvW = win32.function(
    "shell32", "CommandLineToArgvW", win32.LPVOID, win32.LPCWSTR, win32.LPVOID
)
ROOT = os.environ["SYSTEMROOT"]
LETTERS = 'ab\\\\\\"" \t\n\v%&^|é\U0001f600'
SHOW = "import json, sys; sys.stdout.write(json.dumps(sys.argv[1:]))"


def split(line: str) -> list[str]:
    count = ctypes.c_int32()
    place = CommandLineToArgvW(line, ctypes.byref(count))
    try:
        return [ctypes.wstring_at(at) for at in (ctypes.c_void_p * count.value).from_address(place)]
    finally:
        win32.LocalFree(place)


def random_arguments(seed: int, cases: int):
    chance = random.Random(seed)
    for _ in range(cases):
        words = [
            "".join(chance.choices(LETTERS, k=chance.randrange(10)))
            for _ in range(chance.randrange(1, 6))
        ]
        yield [words[0].replace('"', "") or "x", *words[1:]]


def test_windows_splits_a_quoted_command_line_into_the_same_arguments():
    for argv in random_arguments(1, 3000):
        assert split(quoted(argv)) == argv
    # Sanity check: `split` returns what Microsoft documents for a known line.
    assert split('x "a\\\\" b') == ["x", "a\\", "b"]


def test_a_c_runtime_splits_a_quoted_command_line_into_the_same_arguments():
    """Have python.exe print the arguments into which Windows or the C runtime has split the command
    line.
    """
    for argv in random_arguments(2, 8):
        # An argument for python.exe may contain a line feed. corral refuses this only for batch
        # files.
        application, line = start_line([sys.executable, "-c", SHOW, *argv], system_root=ROOT)
        done = subprocess.run(line, executable=application, capture_output=True, check=True)
        assert json.loads(done.stdout) == argv


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "a (b) show.cmd"
    path.write_text(f'@"{sys.executable}" -c "{SHOW}" %*\r\n')
    return str(path)


def test_a_batch_file_gets_its_arguments(batch):
    argv = ["a b", "c;d=e,f", "C:\\", "", "plain"]
    application, line = start_line([batch, *argv], system_root=ROOT)
    done = subprocess.run(line, executable=application, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == argv


@pytest.mark.parametrize("injected", ['"&echo injected&"', "%SystemRoot%", "x\necho injected"])
def test_a_batch_file_does_not_run_injected_commands(batch, injected):
    with pytest.raises(CommandError):
        start_line([batch, injected], system_root=ROOT)


def through_cmd(batch: str, argument: str) -> bytes:
    """Run a batch file, and quote its argument as for an ordinary program. This quoting is wrong
    for cmd.exe, which expands variables even inside quotes.
    """
    line = f'cmd.exe /d /s /c "{quoted([batch, argument])}"'
    cmd = f"{ROOT}\\System32\\cmd.exe"
    return subprocess.run(line, executable=cmd, capture_output=True, check=False).stdout


def test_cmd_expands_variables_in_wrongly_quoted_arguments(batch):
    assert json.loads(through_cmd(batch, "plain")) == ["plain"]
    assert json.loads(through_cmd(batch, "%OS%")) == ["Windows_NT"]


@pytest.mark.parametrize("code", [0, 1, 2, 5, 9, 125])
def test_the_workflows_line_for_cmd_writes_every_exit_code_to_its_file(tmp_path, code):
    """Run the line that the workflow uses to write an exit code to a file. For the exit code 2,
    `echo 2> file` would redirect stderr, so the redirection comes first.
    """
    script, file = tmp_path / "line.cmd", tmp_path / "code"
    script.write_bytes(f"@cmd /c exit {code}\r\n@>{file} echo %ERRORLEVEL%\r\n".encode())
    subprocess.run([f"{ROOT}\\System32\\cmd.exe", "/d", "/c", str(script)], check=False)
    assert file.read_text().strip() == str(code)


@pytest.mark.real_windows(reason="in its cmd.exe a quotation ends at another place")
def test_cmd_runs_injected_commands_in_wrongly_quoted_arguments(batch):
    shown = through_cmd(batch, '"&echo injected&"')
    assert any(row.strip().startswith(b"injected") for row in shown.splitlines())


def test_windows_reads_the_environment_block():
    """Read this process's own environment block, and build the same block from its variables."""
    GetEnvironmentStringsW = win32.function("kernel32", "GetEnvironmentStringsW", win32.LPVOID)
    FreeEnvironmentStringsW = win32.function(
        "kernel32", "FreeEnvironmentStringsW", win32.BOOL, win32.LPVOID
    )
    place = GetEnvironmentStringsW()
    found, at = [], place
    while text := ctypes.wstring_at(at):
        found.append(text)
        at += 2 * (len(text) + 1)
    FreeEnvironmentStringsW(place)
    # Names with a leading "=" belong to cmd.exe, and corral does not pass them to a target.
    own = [tuple(text.split("=", 1)) for text in found if not text.startswith("=")]
    block = environment_block(own).decode("utf-16-le")
    assert sorted(block[:-2].split("\0")) == sorted("=".join(pair) for pair in own)
