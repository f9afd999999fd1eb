"""Test what a command prints when Ctrl-C ends it."""

import json
import types

import pytest

from corral import cli
from corral.cli import INTERRUPTED, demo, ps, unwrap
from corral.servers.store import store

SETTINGS = json.dumps({"mcpServers": {"one": {"command": "corral", "args": ["run", "--", "x"]}}})


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write two configuration files of one client into an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths = [tmp_path / ".gemini" / name / "mcp_config.json" for name in ("config", "antigravity")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(SETTINGS)
    monkeypatch.setattr(unwrap.client_output, "find_files", lambda _: [*map(str, paths)])
    return paths


def interrupt(monkeypatch, *, at: str, after: bool) -> None:
    """Imitate Ctrl-C while corral edits the file `at`, either before the file is replaced or right
    after it.
    """
    edit = unwrap.unwrap_file

    def unwrap_file(path, **options):
        if path == at and not after:
            raise KeyboardInterrupt
        done = edit(path, **options)
        if path == at:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(unwrap, "unwrap_file", unwrap_file)


@pytest.mark.parametrize(
    ("at", "after", "changed"),
    [(0, False, []), (0, True, [0]), (1, False, [0]), (1, True, [0, 1])],
)
def test_an_interrupted_edit_names_the_files_that_it_changed(
    files, monkeypatch, capfd, at, after, changed
):
    interrupt(monkeypatch, at=str(files[at]), after=after)
    assert cli.main(["unwrap", "antigravity"]) == INTERRUPTED
    named = ", ".join(str(files[one]) for one in changed)
    text = f"changed before that: {named}" if named else "no client's settings were changed"
    assert capfd.readouterr().err == f"corral: interrupted; {text}\n"
    assert [one for one, path in enumerate(files) if path.read_text() != SETTINGS] == changed


def test_an_edit_that_is_not_interrupted_does_not_mention_it(files, capfd):
    assert cli.main(["unwrap", "antigravity"]) == 0
    assert "interrupted" not in capfd.readouterr().err
    assert [json.loads(path.read_text()) for path in files] == [
        {"mcpServers": {"one": {"command": "x", "args": []}}}
    ] * 2


def raise_interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("removed", [0, 1])
def test_an_interrupted_removal_names_what_it_removed(monkeypatch, capfd, removed):
    entries = [
        store.Entry(
            key=f"npm:{name}", kind="npm", name=name, version="1", digest=name * 64, size=1,
            created="", command=(),
        )
        for name in ("a", "b")
    ]  # fmt: skip
    gone: list[str] = []

    def remove(entry):
        if len(gone) == removed:
            raise KeyboardInterrupt
        gone.append(entry.key)

    monkeypatch.setattr(store, "entries", lambda: [one for one in entries if one.key not in gone])
    monkeypatch.setattr(store, "remove", remove)
    assert cli.main(["cache", "rm", "a", "b"]) == INTERRUPTED
    text = "removed before that: npm:a" if removed else "nothing was removed"
    assert capfd.readouterr().err == f"corral: interrupted; {text}\n"


def test_a_command_that_changes_nothing_says_that_it_was_interrupted(monkeypatch, capfd):
    monkeypatch.setattr(demo.demo, "run_acts", raise_interrupt)
    assert cli.main(["demo"]) == INTERRUPTED
    assert capfd.readouterr().err == "corral: interrupted\n"


def test_the_usual_end_of_a_watch_is_not_reported(monkeypatch, capfd):
    monkeypatch.setattr(ps, "print_runs", lambda **_: None)
    monkeypatch.setattr(ps, "time", types.SimpleNamespace(sleep=raise_interrupt))
    assert cli.main(["ps", "--watch"]) == INTERRUPTED
    assert capfd.readouterr().err == ""
