"""Test whether the flags of a command already allow a denied access."""

import shlex

import pytest

from corral.cli import grant
from corral.denials import kept
from corral.denials.records import Denial


def is_allowed(allow, has, kind="path"):
    denial = Denial(kind=kind, destination="x", allow=allow)
    return grant.is_allowed(denial, grant.split_flags(shlex.split(has)))


@pytest.mark.parametrize(
    ("has", "allow"),
    [
        ("--read /home/me/notes", "--read /home/me/notes/a/todo.txt"),
        ("--read /home/me/notes/", "--read /home/me/notes"),
        ("--write /home/me/notes", "--read /home/me/notes/todo.txt"),
        ("--write /home/me/notes", "--write /home/me/notes/todo.txt"),
        ("--max-memory 4G", "--max-memory 2G"),
        ("--max-memory 2048M", "--max-memory 2G"),
        ("--max-pids 200", "--max-pids 128"),
        ("--allow-net *.example.com", "--allow-net api.example.com"),
        ("--allow-net api.example.com:8440-8450", "--allow-net api.example.com:8443"),
        ("--allow-net 10.0.0.0/8:5432", "--allow-net 10.1.2.3:5432"),
        ("--secret TOKEN", "--env TOKEN"),
        ("--env TOKEN=abc", "--env TOKEN"),
        ("--tools read_a", "--tools read_a"),
    ],
)
def test_a_wider_flag_allows_what_a_denial_asks_for_but_not_the_other_way_round(has, allow):
    assert is_allowed(allow, has)
    assert is_allowed(allow, allow)
    assert not is_allowed(allow, "--state")


@pytest.mark.parametrize(
    ("has", "allow"),
    [
        ("--read /home/me/notes", "--write /home/me/notes/todo.txt"),
        ("--read /home/me/notes", "--read /home/me/notes2/todo.txt"),
        ("--read /home/me/notes/todo.txt", "--read /home/me/notes"),
        ("--read ${userHome}/notes", "--read /home/me/notes/todo.txt"),
        ("--max-memory 1G", "--max-memory 2G"),
        ("--max-memory ${input:size}", "--max-memory 2G"),
        ("--allow-net example.com", "--allow-net api.example.com"),
        ("--allow-net api.example.com", "--allow-net api.example.com:8443"),
        ("--allow-net api.example.com:443", "--allow-net api.example.com"),
        ("--allow-net 10.0.0.0/8", "--allow-net 11.1.2.3"),
        ("--allow-net ${input:host}", "--allow-net api.example.com"),
        ("--env TOKEN2", "--env TOKEN"),
        ("--read /home/me", "--allow-subprocess"),
    ],
)
def test_a_narrower_or_different_flag_does_not_allow_what_a_denial_asks_for(has, allow):
    assert not is_allowed(allow, has)


def test_a_name_that_was_not_found_is_allowed_by_any_port_of_it():
    has = "--allow-net api.example.com:8443"
    assert is_allowed("--allow-net api.example.com", has, kind="name")
    assert not is_allowed("--allow-net api.example.com", has, kind="port")


def test_a_denial_in_spite_of_a_wider_flag_still_needs_its_own_flag():
    """Deny a path in .git, although the run had a flag for the whole project. A grant of a project
    does not cover its .git, so only a flag for this path counts as allowing it.
    """
    denial = Denial(kind="path", destination="/p/.git/x", allow="--write /p/.git/x")
    seen = kept.SeenDenial(denial=denial, time=1, had_flags=True)
    wide = grant.split_flags(["--write", "/p"])
    assert not grant.is_granted(seen, wide)
    assert grant.is_granted(seen, [*wide, *grant.split_flags(["--write", "/p/.git/x"])])
    # Sanity check: if the run did not have the flag for the project, that flag may allow the path.
    assert grant.is_granted(kept.SeenDenial(denial=denial, time=1), wide)
