"""Compare the docs with the ledger of their promises, and check that every test in the ledger
exists.
"""

import ast
import collections
import errno
import os
import pathlib
import re
import sys

import pytest

import corral
from corral.cli import COMMANDS, load_command

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import claims
from claims import ANCHOR, CLAIMS, ROOT
from corral.denials import records
from ledger.claim import SECURITY, UNCHECKED

DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
IDS = [claim.id for claim in CLAIMS]


def text_of(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """Remove code from a page, because an anchor (`claim: id`) in code is only an example."""
    return re.sub(rf"`{ANCHOR.pattern}`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return (id, text before the anchor) for every claim anchor in a page. Whitespace is
    normalized.
    """
    parts = ANCHOR.split(without_code(text_of(path)))
    return [(parts[at], " ".join(parts[at - 1].split())) for at in range(1, len(parts), 2)]


def names_in(path: pathlib.Path) -> set[str]:
    """Return the names of a file's tests as pytest writes them, without importing the file."""
    found = set()
    for node in ast.parse(text_of(path)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef)
            }
    return {name for name in found if name.split("::")[-1].startswith("test_")}


def test_no_anchor_begins_a_line():
    """Check that no line begins with an anchor. Markdown treats a line that begins with a comment
    as HTML, so it would show the line's text unformatted.
    """
    lines = [
        (path.name, line) for path in DOCS for line in without_code(text_of(path)).splitlines()
    ]
    assert not [found for found in lines if ANCHOR.match(found[1].strip())]
    assert any(ANCHOR.search(line) for _, line in lines)  # make sure that the pages have anchors


def test_every_promise_of_the_docs_is_in_the_ledger_once():
    written = [name for path in DOCS for name, _ in anchors(path)]
    assert collections.Counter(written) == collections.Counter(IDS)
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("claim", CLAIMS, ids=IDS)
def test_each_promise_in_the_docs_is_directly_before_its_anchor(claim):
    before = dict(anchors(ROOT / claim.source))
    assert before[claim.id].endswith(" ".join(claim.sentence.split())), before[claim.id][-200:]


@pytest.mark.parametrize("claim", CLAIMS, ids=IDS)
def test_every_named_test_exists(claim):
    missing = [
        test
        for test in claim.tests
        if not (ROOT / test.partition("::")[0]).is_file()
        or test.partition("::")[2] not in names_in(ROOT / test.partition("::")[0])
    ]
    assert not missing


@pytest.mark.parametrize("claim", CLAIMS, ids=IDS)
def test_a_promise_has_tests_or_a_reason(claim):
    assert bool(claim.tests) != claim.where.startswith(UNCHECKED)
    assert claim.where != UNCHECKED


def test_the_tables_match_the_ledger():
    text = text_of(ROOT / SECURITY)
    shown = {found["name"] for found in claims.TABLE.finditer(text)}
    assert set(claims.HEADS) == {claim.table for claim in CLAIMS if claim.table}
    assert shown == {*claims.HEADS, *claims.EVIDENCE}
    assert text == claims.with_tables(text), "run: python3 tests/claims.py"


def test_ci_runs_the_readme_command_for_tests():
    blocks = text_of(ROOT / "README.md").split("```sh\n")[1:]
    commands = [block.partition("\n```")[0] for block in blocks]
    [command] = [command for command in commands if "pytest" in command]
    assert command in text_of(ROOT / ".ci" / "run").splitlines()


PAGES = sorted([*DOCS, *(ROOT / "tests").glob("**/README.md"), *(ROOT / "bench").glob("README.md")])
SOURCE = ROOT / "src" / "corral"
SYSTEMS = ("linux", "macos", "windows")


def is_there(written: str) -> bool:
    """Return whether a path exists. NAME in the path stands for any name. A path with SYSTEM must
    exist for each of the three systems.
    """
    patterns = [written.replace("NAME", "*")]
    if "SYSTEM" in written:
        patterns = [patterns[0].replace("SYSTEM", system) for system in SYSTEMS]
    bases = (ROOT, ROOT / "src", SOURCE, SOURCE / "platforms" / "linux")
    return all(any(any(base.glob(item)) for base in bases) for item in patterns)


def code_in(path: pathlib.Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL))


def test_every_file_of_the_source_that_the_docs_name_exists():
    missing = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in PAGES
        for word in code_in(path)
        if re.fullmatch(r"[\w/]+/\w+\.(py|toml)", word) and not is_there(word)
    ]
    assert not missing
    assert is_there("platforms/SYSTEM/options.py")
    assert not is_there("platforms/SYSTEM/subreaper.py")  # Sanity check: only Linux has this file


def test_every_package_and_its_first_modules_exist():
    """Check that the packages and modules in the table below "Order of packages" in architecture.md
    exist.
    """
    section = text_of(ROOT / "docs" / "architecture.md").split("## Order of packages")[1]
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    named = [re.findall(r"`([^`]+)`", row.split("|")[column]) for row in rows for column in (1, 3)]
    for [package], modules in zip(named[::2], named[1::2], strict=True):
        for module in modules:
            path = SOURCE / package / module
            assert path.is_dir() if module.endswith("/") else path.with_suffix(".py").is_file()
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {package for [package] in named[::2]} == packages - {"paths"}


def test_every_step_that_the_docs_name_exists():
    """Check names in the docs such as `cgroup.Leaf`: a module cgroup.py must then have a class
    Leaf. Public names such as `corral.Pool` are skipped.
    """
    public = [f"corral.{name}" for name in corral.__all__]
    steps = [
        word
        for path in PAGES
        for word in code_in(path)
        if re.fullmatch(r"([a-z_]+\.)+[A-Z][a-z]\w+", word) and word not in public
    ]
    missing = [
        step
        for step in steps
        for module, _, name in [step.rpartition(".")]
        if not any(
            f"\nclass {name}" in text_of(path)
            for path in SOURCE.rglob(module.replace(".", "/") + ".py")
        )
    ]
    assert len(steps) > 30
    assert not missing


def test_every_link_between_the_docs_works():
    broken = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in DOCS
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(path))
        if "://" not in link and not (path.parent / link).exists()
    ]
    assert not broken


def test_troubleshooting_quotes_denials_as_they_are_printed():
    page = text_of(ROOT / "docs" / "troubleshooting.md")
    quoted = re.findall(r"^### denied: (.+)$", page, flags=re.MULTILINE)
    assert len(quoted) > 5
    assert not [text for text in quoted if not text.startswith(tuple(records.WORDS.values()))]


def list_flags(command: str) -> list[tuple[str, str]]:
    return [(flag.name, flag.short) for flag in load_command(command).FLAGS]


def test_every_flag_is_in_the_docs():
    text = "\n".join(map(text_of, PAGES))
    words = set(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", text))
    missing = [
        f"{command} {name}"
        for command in COMMANDS
        for name, short in list_flags(command)
        if name not in words and short not in words
    ]
    assert missing == []
    assert "--no-such-flag" not in words


def test_every_command_that_prints_a_result_has_the_flag_json():
    without = {name for name in COMMANDS if "--json" not in dict(list_flags(name))}
    assert without == {"run", "schema", "completion"}


def test_every_kind_of_denial_is_in_the_table_of_kinds():
    rows = text_of(ROOT / "docs" / "network.md").split("| kind | what the target did |")[1]
    cells = [row.split("|")[1] for row in rows.split("\n\n")[0].splitlines() if "`" in row]
    assert set(re.findall(r"`(\w+)`", "".join(cells))) == set(records.WORDS)


def test_every_step_of_a_linux_mechanism_is_in_the_docs():
    page = text_of(ROOT / "docs" / "architecture.md")
    steps = [
        f"{path.stem}.{name}"
        for path in (SOURCE / "platforms" / "linux" / "mechanisms").glob("*.py")
        for name in re.findall(
            r"^@record\nclass (\w+):\n(?=(?: .*\n|\n)*? {4}name = )", text_of(path), re.MULTILINE
        )
    ]
    assert len(steps) > 20
    assert [step for step in steps if f"`{step}`" not in page] == []


OF_OTHERS = re.compile(r" \([^()]*(?:own message|git clone|a shell)[^()]*\)$")
"""Marks a heading that quotes the message of another program."""
SYSTEM_MESSAGES = {os.strerror(code) for code in errno.errorcode}
VALUE = "\0"


def find_printed_texts() -> list[tuple[list[str], re.Pattern[str]]]:
    """Find the strings in corral's source that may be printed, each up to its first semicolon.

    Return two things for each string: its fixed parts, which are the texts between inserted values
    and punctuation, and a pattern that accepts any inserted values. Parts of a single word are left
    out.
    """
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = [getattr(part, "value", VALUE) for part in parts]
            text = "".join(word if isinstance(word, str) else VALUE for word in words)
            first = re.sub(r"\{\w+\}", VALUE, text).partition("; ")[0].strip(f"{VALUE} ")
            pieces = [piece.strip() for piece in re.split(rf"[{VALUE};:(),]", first)]
            pattern = re.compile(".*".join(map(re.escape, first.split(VALUE))))
            found.append(([piece for piece in pieces if " " in piece], pattern))
    return [one for one in found if one[0]]


def is_printed(heading: str, texts: list[tuple[list[str], re.Pattern[str]]]) -> bool:
    """Return whether a heading matches one of the printed texts. Try only the texts that share the
    longest fixed part with the heading.
    """
    lengths = [max((len(p) for p in pieces if p in heading), default=0) for pieces, _ in texts]
    longest = max(lengths)
    common = [text for length, (_, text) in zip(lengths, texts, strict=True) if length == longest]
    return longest > 0 and any(text.search(heading) for text in common)


def test_troubleshooting_quotes_errors_as_they_are_printed():
    page = text_of(ROOT / "docs" / "troubleshooting.md").replace("### While its client uses it", "")
    headings = re.findall(r"^### (?!denied: )(.+)$", page, flags=re.MULTILINE)
    ours = [
        heading
        for heading in headings
        if not OF_OTHERS.search(heading)
        and not {part.partition(" (")[0] for part in heading.split(", ")} <= SYSTEM_MESSAGES
    ]
    texts = find_printed_texts()
    assert len(ours) > 20
    assert [heading for heading in ours if not is_printed(heading, texts)] == []
    assert not is_printed("overlay cannot give files of one user to another", texts)
