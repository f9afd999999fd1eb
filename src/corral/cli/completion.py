"""`corral completion SHELL`: print a completion script that is made from the tables of flags."""

from corral.cli import COMMANDS, HELP, load_command, output, schema
from corral.cli.option_parser import Flag, Options, UsageError
from corral.clients.catalogue import NAMES

SUMMARY = "print a completion script for bash, zsh or fish"
USAGE = (
    "usage: corral completion bash|zsh|fish\n"
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
    **dict.fromkeys(("wrap", "unwrap", "status"), NAMES),
}
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
TEMPLATES = {"bash": (BASH, CASE), "zsh": (ZSH, ZSH_CASE)}


def main(_options: Options, rest: list[str]) -> int:
    if len(rest) != 1 or rest[0] not in SHELLS:
        raise UsageError("name a shell: bash, zsh or fish", hint=USAGE.partition("\n")[0])
    output.write_lines(_fish() if rest == ["fish"] else _format_script(*TEMPLATES[rest[0]]))
    return 0


def _all_flags() -> dict[str, tuple[Flag, ...]]:
    return {name: (*load_command(name).FLAGS, HELP) for name in COMMANDS}


def _format_script(template: str, case: str) -> list[str]:
    flags = _all_flags()
    words = {name: [flag.name for flag in found] for name, found in flags.items()}
    for name, more in WORDS.items():
        words[name] += more
    cases = [case.format(name=name, flags=" ".join(found)) for name, found in words.items()]
    return template.format(commands=" ".join(flags), cases="\n".join(cases)).rstrip().split("\n")


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish() -> list[str]:
    first = "__fish_use_subcommand"
    lines = [f"complete -c corral -n {first} -l {name}" for name in ("help", "version")]
    for name, flags in _all_flags().items():
        lines.append(
            f"complete -c corral -f -n {first} -a {name} -d {_quote(load_command(name).SUMMARY)}"
        )
        lines += [
            f"complete -c corral -n {SEEN.format(name)} -l {flag.name[2:]}"
            f"{' -r' if flag.value else ''} -d {_quote(flag.help)}"
            for flag in flags
        ]
    for name, more in WORDS.items():
        only = " -f" if name == "completion" else ""
        lines.append(f"complete -c corral{only} -n {SEEN.format(name)} -a '{' '.join(more)}'")
    return [line.replace("`", "") for line in lines]
