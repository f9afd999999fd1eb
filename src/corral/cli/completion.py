"""`corral completion SHELL`: completion for bash, zsh and fish, made from the tables of flags."""

from __future__ import annotations

from corral.cli import output
from corral.cli.option_parser import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Flag, Options

SUMMARY = "print a completion script for bash, zsh or fish"
USAGE = "usage: corral completion bash|zsh|fish"
FLAGS: tuple[Flag, ...] = ()

SHELLS = ("bash", "zsh", "fish")
SEEN = "'__fish_seen_subcommand_from {}'"

BASH = """\
_corral() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [ "$word" = -- ] && {{ COMPREPLY=($(compgen -f -c -- "$current")); return; }}
    done
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    [[ $current == -* ]] || COMPREPLY+=($(compgen -f -- "$current"))
}}
complete -o filenames -F _corral corral
"""
CASE = '        {name}) COMPREPLY=($(compgen -W "{flags}" -- "$current")) ;;'
ZSH = """\
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
_corral() {{
    (( $words[(I)--] && $words[(I)--] < CURRENT )) && {{ _command_names; _files; return }}
    (( CURRENT == 2 )) && {{ compadd -- {commands} --help --version; return }}
    case $words[2] in
{cases}
    esac
    [[ $PREFIX == -* ]] || _files
}}
compdef _corral corral
"""
ZSH_CASE = "        {name}) compadd -- {flags} ;;"


def main(_options: Options, rest: list[str]) -> int:
    if rest == ["fish"]:
        output.say("\n".join(_fish()))
    elif rest == ["bash"]:
        output.say(_filled(BASH, CASE))
    elif rest == ["zsh"]:
        output.say(_filled(ZSH, ZSH_CASE))
    else:
        raise UsageError("name a shell: bash, zsh or fish", hint=USAGE)
    return 0


def _flags() -> dict[str, tuple[Flag, ...]]:
    from corral.cli import COMMANDS, HELP, load

    return {name: (*load(name).FLAGS, HELP) for name in COMMANDS}


def _words() -> dict[str, tuple[str, ...]]:
    """What follows a command besides flags and files."""
    from corral.clients.catalogue import NAMES

    return {"completion": SHELLS, **dict.fromkeys(("wrap", "unwrap", "status"), NAMES)}


def _filled(template: str, case: str) -> str:
    flags = _flags()
    words = {name: [flag.name for flag in found] for name, found in flags.items()}
    for name, more in _words().items():
        words[name] += more
    cases = [case.format(name=name, flags=" ".join(found)) for name, found in words.items()]
    return template.format(commands=" ".join(flags), cases="\n".join(cases)).rstrip()


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish() -> list[str]:
    from corral.cli import load

    first = "__fish_use_subcommand"
    lines = [f"complete -c corral -n {first} -l {name}" for name in ("help", "version")]
    for name, flags in _flags().items():
        lines.append(f"complete -c corral -f -n {first} -a {name} -d {_quoted(load(name).SUMMARY)}")
        lines += [
            f"complete -c corral -n {SEEN.format(name)} -l {flag.name[2:]}"
            f"{' -r' if flag.value else ''} -d {_quoted(flag.help)}"
            for flag in flags
        ]
    for name, more in _words().items():
        only = " -f" if name == "completion" else ""
        lines.append(f"complete -c corral{only} -n {SEEN.format(name)} -a '{' '.join(more)}'")
    return [line.replace("`", "") for line in lines]
