"""Test the arguments, variables, streams and exit codes of a target."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from windows.conftest import PYTHON

LOOSE = ("--best-effort",)


def test_arguments_arrive_as_they_were_written(corral):
    words = ["a b", "", '"', "\\", '\\\\"', "c:\\x\\", "%PATH%", "^&|<>", "ä€", "-x=1", "\t"]
    assert corral.inside("answer = sys.argv[1:]", *words, flags=LOOSE) == words


def test_the_environment_contains_only_the_policys_variables(corral):
    code = "answer = dict(os.environ)"
    outer = {**os.environ, "SECRET_OF_THE_USER": "1", "Passed": "ja", "TOKEN": "t"}
    flags = (*LOOSE, "--env", "Passed", "--env", "LEVEL=9", "--secret", "TOKEN")
    seen = corral.inside(code, flags=flags, env=outer)
    assert seen["PASSED"] == "ja"
    assert (seen["LEVEL"], seen["TOKEN"]) == ("9", "t")
    assert "SECRET_OF_THE_USER" not in seen
    for name in ("SYSTEMROOT", "SYSTEMDRIVE", "LOCALAPPDATA", "USERPROFILE", "TEMP", "PATHEXT"):
        assert seen[name], name
    # Sanity check: outside of the sandbox, the variable is set.
    assert corral.outside(code, env=outer)["SECRET_OF_THE_USER"] == "1"


def test_home_and_temp_are_private_and_gone_afterwards(corral):
    code = (
        "places = [os.environ[name] for name in ('USERPROFILE', 'TEMP', 'LOCALAPPDATA', 'APPDATA')]\n"
        "for number, place in enumerate(places):\n"
        "    deep = os.path.join(place, f'deep{number}')\n"
        "    os.makedirs(os.path.join(deep, 'er'))\n"
        "    open(os.path.join(deep, 'file'), 'w').close()\n"
        "    os.chmod(os.path.join(deep, 'file'), 0o400)\n"
        "answer = [os.getcwd(), *places]"
    )
    cwd, *places = corral.inside(code, flags=LOOSE)
    assert cwd == places[0]
    assert places[0] != places[1]  # in a container, only TEMP differs from USERPROFILE
    for place in places:
        assert "corral-" in place
        assert not os.path.exists(place)
        assert not os.path.exists(os.path.dirname(place))


def test_a_private_directory_is_removed_whatever_its_names_and_depth(corral):
    """Let the target use names that end in a dot or a space, names of devices, and paths that are
    longer than any Windows limit.
    """
    code = (
        "place = '\\\\\\\\?\\\\' + os.environ['TEMP']\n"
        "for name in ('dot.', 'space ', 'nul', 'con.txt', 'a' * 200):\n"
        "    os.mkdir(f'{place}\\\\{name}')\n"
        "    open(f'{place}\\\\{name}\\\\{name}', 'w').close()\n"
        "deep = place\n"
        "for _ in range(20):\n"
        "    deep += '\\\\' + 'd' * 99\n"
        "    os.mkdir(deep)\n"
        "answer = [os.environ['TEMP'], os.listdir(place)]"
    )
    place, names = corral.inside(code, flags=LOOSE)
    assert sorted(names) == ["a" * 200, "con.txt", "d" * 99, "dot.", "nul", "space "]
    assert not os.path.exists(os.path.dirname(place))


@pytest.mark.parametrize("code", [0, 124, 256, 0xC0000005, 0xFFFFFFFF])
def test_exit_codes_are_the_targets_own(corral, code):
    exiting = f"import ctypes; ctypes.WinDLL('kernel32').ExitProcess(ctypes.c_uint32({code}))"
    done = corral.run(PYTHON, "-c", exiting, flags=LOOSE)
    assert done.returncode == code


def test_a_crash_is_in_the_report(corral, tmp_path):
    path = tmp_path / "report.json"
    crash = "import ctypes; ctypes.WinDLL('kernel32').ExitProcess(ctypes.c_uint32(0xC0000005))"
    corral.run(PYTHON, "-c", crash, flags=(*LOOSE, "--report", str(path)))
    outcome = json.loads(path.read_text())["outcome"]
    assert (outcome["kind"], outcome["exit_code"]) == ("exited", 0xC0000005)


def test_a_missing_program_exits_with_127(corral):
    done = corral.run("no-such-program-anywhere", flags=LOOSE)
    assert (done.returncode, b"no-such-program-anywhere" in done.stderr) == (127, True)


def test_a_file_that_is_not_a_program_exits_with_126(corral, tmp_path):
    path = tmp_path / "text.exe"
    path.write_text("this is not a program")
    assert corral.run(str(path), flags=LOOSE).returncode == 126


def test_stdout_and_stderr_are_separate(corral):
    code = "import sys; sys.stdout.write('out'); sys.stderr.write('\\nerr\\n')"
    done = corral.run(PYTHON, "-c", code, flags=LOOSE)
    assert done.stdout == b"out"
    assert b"\nerr" in done.stderr.replace(b"\r\n", b"\n")


def test_bytes_pass_unchanged(corral):
    data = bytes(range(256)) * 1000
    code = (
        "import sys\n"
        "while chunk := sys.stdin.buffer.read(1000):\n"
        "    sys.stdout.buffer.write(chunk)\n"
    )
    assert corral.run(PYTHON, "-c", code, flags=LOOSE, input=data).stdout == data


def test_a_target_gets_working_pipes_in_place_of_nul(corral):
    """Check that the target gets a pipe instead of NUL, because some builds of Windows do not let
    the target open NUL.
    """
    code = (
        "import ctypes, json, os, sys, msvcrt\n"
        "kind = ctypes.WinDLL('kernel32').GetFileType\n"
        "kind.argtypes = [ctypes.c_void_p]\n"
        "kinds = [kind(msvcrt.get_osfhandle(fd)) for fd in range(3)]\n"
        "os.write(1, b'x' * 300000)\n"
        "os.write(2, json.dumps([kinds, sys.stdin.read()]).encode())\n"
    )
    argv = corral.argv("run", *LOOSE, "--", PYTHON, "-c", code)
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stderr.splitlines()[-1]) == [[3, 3, 3], ""]


def test_a_file_as_stream_is_passed_unchanged(corral, tmp_path):
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"line 1\nline 2\n")
    code = "import sys; sys.stdout.write(sys.stdin.read().upper())"
    argv = corral.argv("run", *LOOSE, "--", PYTHON, "-c", code)
    with source.open("rb") as stdin, sink.open("wb") as stdout:
        subprocess.run(argv, stdin=stdin, stdout=stdout, timeout=60, check=True)
    assert sink.read_text() == "LINE 1\nLINE 2\n"


def test_variable_names_that_differ_only_in_case_are_one_variable(corral):
    flags = (*LOOSE, "--env", "Key=1", "--env", "KEY=2")
    assert corral.inside("answer = os.environ['key']", flags=flags) == "2"
