"""Test that every command prints its help, and that `export ENGINE --help` does so too."""

from __future__ import annotations

import pytest

from corral import cli


@pytest.mark.parametrize("words", [["--help"], ["oci", "-h"], ["kubernetes", "--help"]])
def test_the_help_of_export_lists_the_flags_of_each_engine(words, capfd):
    assert cli.main(["export", *words]) == 0
    shown = capfd.readouterr().out
    assert "usage: corral export oci" in shown
    assert "--image NAME" in shown


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_prints_its_help(name, capfd):
    assert cli.main([name, "--help"]) == 0
    assert f"usage: corral {name}" in capfd.readouterr().out
