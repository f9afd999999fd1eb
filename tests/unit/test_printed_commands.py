"""Check that printed commands quote paths for a shell, and that each line of a shell block in the
docs is a command.
"""

import ast
import importlib.util
import pathlib
import re

import pytest

SOURCE = pathlib.Path(importlib.util.find_spec("corral").origin).parent
FILES = sorted(SOURCE.rglob("*.py"))
QUOTING = {"shell_word", "last_words", "quote", "join", "_quote_all"}
# Matches the part of a command before an inserted path or name, such as `rm ` or `--read `. In this
# part, `{}` stands for each value that is inserted earlier.
COMMANDS = re.compile(
    r"(?:\b(?:rm|rm -rf|chmod \S+|chown -R \S+|touch|mkdir -p|runc run -b|pip wheel .* -w"
    r"|corral (?:approve|cache rm|grant|inspect|learn|run|unwrap|upgrade|why|wrap)(?: --[a-z-]+)*)"
    r"|--(?:config|path|policy|read|volume|write)) $|\btype \./$"
)
SAFE = {
    ("containerfile.py", "SERVER"): "a constant",
    ("package_runners.py", "registry"): "npm or pypi",
    ("bundle.py", "RUNNERS[program]"): "npm or pypi",
    ("server_json.py", "name"): "the checked name of a variable",
    ("upgrade.py", "found.current.version"): "a checked version",
    ("upgrade.py", "found.version"): "a checked version",
    ("user_values.py", "shown(key)"): "an error about what the user typed",
    ("workload.py", "path"): "an error about what the user typed",
    ("workload.py", "text"): "an error about what the user typed",
}


def find_unquoted(source: str) -> list[str]:
    """Return the values that f-strings insert after a command without quoting them."""
    tree = ast.parse(source)
    quoted = {name for node in ast.walk(tree) for name in _assign_quoted(node)}
    found = []
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        before = ""
        for part in text.values:
            if isinstance(part, ast.Constant):
                before += part.value
                continue
            word = ast.unparse(part.value)
            known = word.partition("[")[0] in quoted or _has_quoting_call(part.value)
            found += [word] if COMMANDS.search(before) and not known else []
            before += "{}"
    return found


def _assign_quoted(node: ast.AST) -> list[str]:
    """Return the variables to which an assignment or a comprehension assigns quoted words."""
    if isinstance(node, ast.Assign) and _has_quoting_call(node.value):
        targets = node.targets
    elif isinstance(node, ast.comprehension) and _has_quoting_call(node.iter):
        targets = [node.target]
    else:
        return []
    return [one.id for each in targets for one in ast.walk(each) if isinstance(one, ast.Name)]


def _has_quoting_call(node: ast.AST) -> bool:
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(getattr(one, "id", getattr(one, "attr", "")) in QUOTING for one in calls)


def test_printed_commands_quote_paths():
    found = {(path.name, word) for path in FILES for word in find_unquoted(path.read_text("utf-8"))}
    assert found == set(SAFE)


@pytest.mark.parametrize(
    ("source", "unquoted"),
    [
        ("f'then: rm -rf {state.path}'", ["state.path"]),
        ("f'sudo chown -R {uid} {path}'", ["path"]),
        ("word = printable(path)\nf'--read {word}'", ["word"]),
        ("f'then: rm -rf {shell_word(state.path)}'", []),
        ("word = shell_word(path)\nf'--read {word}'", []),
        ("f'type ./{name}'", ["name"]),
        ("f'it needs --read, but {path} is missing'", []),
    ],
)
def test_the_search_finds_unquoted_paths(source, unquoted):
    assert find_unquoted(source) == unquoted


ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PROGRAMS = {
    "chmod", "corral", "for", "git", "kubectl", "mcp-scanner", "mkdir", "pip", "pipx", "podman", "pytest", "python3", "ruff",
    "runc", "uv",
}  # fmt: skip


def find_unknown_commands(text: str) -> list[str]:
    """Find the lines in shell blocks that do not start with a known program. A line may set a
    variable first (`VARIABLE=value program`).
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    words = {line: re.sub(r"^\w+=\S+ ", "", line).split()[:1] for line in lines if line.strip()}
    return [line for line, word in words.items() if pathlib.Path(*word).name not in PROGRAMS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_line_of_a_shell_block_is_a_command(page):
    assert find_unknown_commands(page.read_text(encoding="utf-8")) == []


def test_a_shell_block_that_was_wrapped_like_prose_is_found():
    block = "```sh\ncorral status  # which clients are on\nthis machine? corral wrap cursor\n```\n"
    assert find_unknown_commands(block) == ["this machine? corral wrap cursor"]
