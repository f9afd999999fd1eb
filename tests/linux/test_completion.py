"""Test the completion of `corral` commands in real shells."""

import json
import os
import re
import subprocess
import sys

import pytest

import rigs
from corral.cli import COMMANDS

BASH = """
source "$1"; read -ra COMP_WORDS <<< "$2"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
_corral; printf "%s\\n" "${COMPREPLY[@]}"
"""
FISH = """
source $argv[1]; complete --do-complete=$argv[2] | string replace --regex '\\t.*' ''; true
"""
# This program runs a shell in a terminal. Control-X prints the completed line.
ZSH = """
zmodload zsh/zpty
zpty inner zsh -f -i
show='show() { print -r -- "$BUFFER" > '${(q)3}'; print SHO""WN }; zle -N show; bindkey "^X" show'
zpty -w inner "$show; autoload -Uz compinit; compinit -u -D; source ${(q)1}; print REA''DY"
zpty -r inner line '*READY*'
zpty -w -n inner "$2"$'\\t\\x18'
zpty -r inner line '*SHOWN*'
print -r -- ${${(z)"$(< $3)"}[-1]}
"""
ASK = {
    "bash": ("bash", "--norc", "-c", BASH, "bash"),
    "zsh": ("zsh", "-f", "-c", ZSH, "zsh"),
    "fish": ("fish", "--no-config", "-c", FISH),
}
HOSTILE = "evil$(touch${IFS}marked)`touch${IFS}marked`"
COMPLETED = {
    "corral expl": "explain",
    "corral --ver": "--version",
    "corral run --max-p": "--max-pids",
    "corral doctor --j": "--json",
    "corral completion ba": "bash",
    "corral wrap --gra": "--grant-arguments",
    "corral unwrap cur": "cursor",
    "corral run --policy /etc/hostn": "/etc/hostname",
    "corral run --max-pids 5 -- /etc/hostn": "/etc/hostname",
}


@pytest.fixture(params=ASK)
def shell(request):
    rigs.need("shells")
    return request.param


@pytest.fixture
def complete(ordinary, shell, tmp_path):
    script = tmp_path / "script"
    done = ordinary.corral("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    script.write_bytes(done.stdout)

    def ask(line: str) -> set[str]:
        argv = [*ASK[shell], str(script), line, str(tmp_path / "line")]
        found = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert found.stderr == ""
        return set(found.stdout.split())

    return ask


@pytest.mark.parametrize("line", COMPLETED)
def test_a_shell_completes_commands_and_flags(complete, line):
    assert complete(line) == {COMPLETED[line]}


@pytest.fixture
def servers(tmp_path, monkeypatch):
    """Configure servers in a home directory, and put `corral` on PATH."""
    program = tmp_path / "bin" / "corral"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m corral "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "home" / ".cursor" / "mcp.json"
    path.parent.mkdir(parents=True)
    names = ("notes", HOSTILE)
    path.write_text(json.dumps({"mcpServers": {name: {"command": "true"} for name in names}}))
    wrapped = {"command": "corral", "args": ["run", "--", "true"]}
    project = tmp_path / ".cursor" / "mcp.json"
    project.parent.mkdir()
    project.write_text(json.dumps({"mcpServers": {"issues": wrapped}}))


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("corral wrap cursor no", "notes"),
        ("corral unwrap --dry-run cursor no", "notes"),
        ("corral run cursor:no", "cursor:notes"),
        ("corral grant iss", "issues"),
        ("corral why iss", "issues"),
        ("corral run --profile gitl", "gitlab"),
        ("corral cache ver", "verify"),
        ("corral export kub", "kubernetes"),
    ],
)
def test_a_shell_completes_the_names_of_servers(servers, complete, line, completed):
    assert complete(line) == {completed}


def test_files_do_not_hide_the_servers_that_why_can_name(servers, complete, tmp_path, shell):
    (tmp_path / ".issues-of-others").touch()
    (tmp_path / "issues.json").touch()
    assert complete("corral why iss") == {"issues"}
    assert complete("corral status iss") == {"issues.json"}  # Sanity check: files can be completed
    found = f"{tmp_path}/issues.json" if shell != "fish" else f"{tmp_path}/iss"
    assert complete(f"corral why {tmp_path}/iss") <= {found}


def test_a_shell_does_not_evaluate_the_name_of_a_server(servers, complete, tmp_path):
    found = complete("corral wrap cursor ev")
    assert any("evil" in word for word in found)  # Sanity check: the name was offered
    assert not (tmp_path / "marked").exists()
    assert not (tmp_path / "home" / "marked").exists()


def test_a_flag_of_another_command_is_not_completed(complete, shell):
    left_alone = {"--max-p"} if shell == "zsh" else set()
    assert complete("corral doctor --max-p") == left_alone


@pytest.mark.parametrize("shell", ASK)
def test_every_command_and_flag_is_in_the_script(ordinary, shell):
    script = ordinary.corral("completion", shell).stdout.decode()
    for command in COMMANDS:
        told = ordinary.corral(command, "--help").stdout.decode().split("\n\n")[-1]
        about = [line for line in script.splitlines() if re.search(rf"\b{command}\b[)' ]", line)]
        words = set(re.findall(r"--?[\w-]+|(?<=-l )[\w-]+", "\n".join(about)))
        wanted = {flag if shell != "fish" else flag[2:] for flag in re.findall(r"--[a-z-]+", told)}
        assert wanted, command
        assert wanted - words == set(), command
