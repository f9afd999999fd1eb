"""`corral completion SHELL`: print a completion script that is generated from the tables of flags.

The script itself contains the commands and flags. It gets the names of servers from `corral
completion names`, because they change. A script must never evaluate these names as code, because
they come from files that other people may have written.
"""

import os

from corral.cli import COMMANDS, HELP, cache, export, load_command, output, schema, wrapped_servers
from corral.cli.option_parser import Flag, Options, UsageError, suggest
from corral.clients.catalogue import NAMES, find_client, own_files
from corral.clients.edit_file import read_client_file
from corral.clients.find_server import read_own_files
from corral.errors import SandboxError
from corral.policy import profiles
from corral.safe_text import printable

SUMMARY = "print a completion script for bash, zsh or fish"
USAGE = (
    "usage: corral completion bash|zsh|fish\n"
    "       corral completion names -- WORD...    (the scripts call this to complete a server)\n"
    "bash: add this line to ~/.bashrc: source <(corral completion bash)\n"
    "zsh:  add this line to ~/.zshrc: source <(corral completion zsh)\n"
    "fish: add this line to ~/.config/fish/config.fish: corral completion fish | source"
)
FLAGS: tuple[Flag, ...] = ()

SHELLS = ("bash", "zsh", "fish")
# Words that may follow a command, other than flags and files.
WORDS = {
    "completion": SHELLS,
    "schema": schema.NAMES,
    "cache": cache.VERBS,
    "export": export.ENGINES,
    "audit": ("verify",),
    "profiles": tuple(profiles.names()),
    **dict.fromkeys(("wrap", "unwrap", "status", "why"), NAMES),
}
RUNNING = ("run", "learn", "inspect", "explain")
"""Commands that take CLIENT:SERVER."""
NAMING = ("wrap", "unwrap", "grant", "why", *RUNNING)
"""Commands that names of servers may follow."""
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
    [[ $current == -* ]] && return
    [[ ${{COMP_WORDS[1]}} == why && $current != */* ]] || COMPREPLY+=($(compgen -f -- "$current"))
    [[ " {naming} " == *" ${{COMP_WORDS[1]}} "* ]] || return
    # Bash splits CLIENT:SERVER at the colon, and replaces only the part after the colon.
    local before= at=$COMP_CWORD
    [[ $current == : ]] && current= || at=$((at - 1))
    [[ ${{COMP_WORDS[at]}} == : ]] && before=${{COMP_WORDS[at-1]}}:
    while IFS= read -r word; do
        [[ $word == "$before$current"* ]] && COMPREPLY+=("${{word#"$before"}}")
    done < <(corral completion names -- "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" 2>/dev/null)
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
    [[ $PREFIX == -* ]] && return
    [[ $words[2] == why && $PREFIX != */* ]] || _files
    [[ " {naming} " == *" $words[2] "* ]] || return
    compadd -- ${{(f)"$(corral completion names -- "${{(@)words[2,CURRENT-1]}}" 2>/dev/null)"}}
}}
compdef _corral corral
"""
ZSH_CASE = "        {name}) compadd -- {flags} ;;"
TEMPLATES = {"bash": (BASH, CASE), "zsh": (ZSH, ZSH_CASE)}


def main(_options: Options, rest: list[str]) -> int:
    if rest[:1] == ["names"]:
        names = dict.fromkeys(list_names(rest[1:]))
        output.write_lines(name for name in names if printable(name) == name)
        return 0
    if len(rest) != 1 or rest[0] not in SHELLS:
        hint = suggest(" ".join(rest), SHELLS, USAGE.partition("\n")[0])
        raise UsageError("name a shell: bash, zsh or fish", hint=hint)
    output.write_lines(_fish() if rest == ["fish"] else _format_script(*TEMPLATES[rest[0]]))
    return 0


def list_names(words: list[str]) -> list[str]:
    """Return the names that can complete a command line, such as servers after `unwrap cursor`."""
    command, *given = words or [""]
    if given[-1:] == ["--profile"]:
        return profiles.names()
    if command in {"wrap", "unwrap"}:
        return [name for word in given for name in _list_servers(word)]
    if command in {"grant", "why"}:
        rows = wrapped_servers.list_wrapped()
        return [name for client, _, one in rows for name in (one.name, f"{client}:{one.name}")]
    if command in RUNNING:
        return [f"{client}:{server.name}" for client, _, server in read_own_files()]
    return []


def _list_servers(word: str) -> list[str]:
    """Return the names of the servers in `word`, which is a client or a file.
    Skip files that cannot be read.
    """
    client = find_client(word)
    names: list[str] = []
    for path in own_files(client) if client else [os.path.expanduser(word)]:
        try:
            names += [server.name for server in read_client_file(path).servers]
        except SandboxError:
            continue
    return names


def _all_flags() -> dict[str, tuple[Flag, ...]]:
    return {name: (*load_command(name).FLAGS, HELP) for name in COMMANDS}


def _format_script(template: str, case: str) -> list[str]:
    flags = _all_flags()
    words = {name: [flag.name for flag in found] for name, found in flags.items()}
    for name, more in WORDS.items():
        words[name] += more
    cases = [case.format(name=name, flags=" ".join(found)) for name, found in words.items()]
    script = template.format(
        commands=" ".join(flags), cases="\n".join(cases), naming=" ".join(NAMING)
    )
    return script.rstrip().split("\n")


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish() -> list[str]:
    first = "__fish_use_subcommand"
    values = {"--profile": f" -f -a '{' '.join(profiles.names())}'"}
    lines = [f"complete -c corral -n {first} -l {name}" for name in ("help", "version")]
    for name, flags in _all_flags().items():
        lines.append(
            f"complete -c corral -f -n {first} -a {name} -d {_quote(load_command(name).SUMMARY)}"
        )
        lines += [
            f"complete -c corral -n {SEEN.format(name)} -l {flag.name[2:]}"
            f"{' -r' if flag.value else ''}{values.get(flag.name, '')} -d {_quote(flag.help)}"
            for flag in flags
        ]
    for name, more in WORDS.items():
        only = " -f" if name in {"completion", "profiles", "why"} else ""
        lines.append(f"complete -c corral{only} -n {SEEN.format(name)} -a '{' '.join(more)}'")
    typed = "(commandline -opc)[2..]"
    call = f"command -q corral; and corral completion names -- {typed} 2>/dev/null"
    lines += [f"complete -c corral -n {SEEN.format(name)} -a '({call})'" for name in NAMING]
    return [line.replace("`", "") for line in lines]
