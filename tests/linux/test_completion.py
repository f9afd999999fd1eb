"""Test the completion of `corral` commands in real shells."""

import re
import subprocess

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
# This program runs a shell in a terminal, where a key press prints the completed line.
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
