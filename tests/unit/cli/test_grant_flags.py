"""Test how `grant` adds flags to those that a server already has."""

import pytest

from corral.cli.grant import merge_flags


@pytest.mark.parametrize(
    ("current", "change", "merged"),
    [
        ("--read /a/f --state", "--write /a", "--state --write /a"),
        ("--read /a/f", "--write /a/f", "--write /a/f"),
        ("--read /a/f --read /b", "--write /a", "--read /b --write /a"),
        # In the other cases the read grants stay. Their paths are meant to be read-only or, like
        # `.env`, would be hidden from the server without a grant of their own.
        ("--read /a/f", "--write /a --read /a/f", "--read /a/f --write /a"),
        ("--write /a/b --read /a/b/f", "--write /a", "--write /a/b --read /a/b/f --write /a"),
        ("--write /a --read /a/f", "--write /a", "--write /a --read /a/f"),
        ("--write /a", "--read /a/f", "--write /a --read /a/f"),
        ("--read /a/.env", "--write /a", "--read /a/.env --write /a"),
    ],
)
def test_a_new_write_grant_replaces_the_read_grants_in_it(current, change, merged):
    assert merge_flags(current.split(), change.split(), remove=False) == tuple(merged.split())


def test_removing_a_write_grant_keeps_the_read_grants_in_it():
    assert merge_flags(["--write", "/a", "--read", "/a/f"], ["--write", "/a"], remove=True) == (
        "--read",
        "/a/f",
    )
