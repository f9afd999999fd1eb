"""Test the hint that shows a command to run the same server in WSL2."""

from __future__ import annotations

import shlex

import pytest

from corral.programs import windows_wsl


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("C:\\srv\\my server\\index.js", "/mnt/c/srv/my server/index.js"),
        ("d:/notes", "/mnt/d/notes"),
        ("--read=C:\\notes", "--read=/mnt/c/notes"),
        ("C:\\Program Files\\nodejs\\node.exe", "node"),
        ("npx.cmd", "npx"),
        ("node", "node"),
        ("--", "--"),
        ("-y", "-y"),
        ("https://example.com/a.exe", "https://example.com/a.exe"),
        ("\\\\server\\share\\x", "\\\\server\\share\\x"),
    ],
)
def test_the_command_is_translated_for_wsl(word, there):
    assert windows_wsl.linux_word(word) == there


def test_the_hint_has_the_complete_command():
    hint = windows_wsl.advice("Ubuntu 24")
    words = ["--read", "C:\\my notes", "--", "node.exe", "C:\\srv\\index.js"]
    finished = windows_wsl.with_command(hint, words)
    typed = finished.split("`")[1]
    assert shlex.split(typed) == [
        "wsl.exe", "-d", "Ubuntu 24", "--",
        "corral", "run", "--read", "/mnt/c/my notes", "--", "node", "/mnt/c/srv/index.js",
    ]  # fmt: skip


def test_without_wsl2_the_hint_says_how_to_install_it():
    assert "wsl.exe --install" in windows_wsl.with_command(windows_wsl.advice(""), ["--", "x"])
