"""Test which packages are listed in the workspace files of pnpm, npm and uv."""

from __future__ import annotations

import json

import pytest

from corral.programs.workspaces import lists_package

PATTERNS = [
    (["packages/*"], True),
    (["./packages/*/"], True),
    (["packages/**"], True),
    (["**"], True),
    (["packages/a"], True),
    (["packages"], False),
    (["*"], False),
    (["other/*"], False),
    (["packages/*", "!packages/a"], False),
    (["!packages/a", "packages/*"], True),
    ([], False),
]


@pytest.mark.parametrize(("patterns", "listed"), PATTERNS)
@pytest.mark.parametrize("tool", ["npm", "npm object", "pnpm", "pnpm brackets"])
def test_a_workspace_lists_the_packages_that_match_its_patterns(tmp_path, tool, patterns, listed):
    text = json.dumps({"workspaces": patterns if tool == "npm" else {"packages": patterns}})
    if tool.startswith("npm"):
        (tmp_path / "package.json").write_text(text)
    elif tool == "pnpm":
        lines = "".join(f"  - '{pattern}'  # one\n" for pattern in patterns)
        (tmp_path / "pnpm-workspace.yaml").write_text(
            f"catalog:\n  a: 1\npackages:\n{lines}\nx: [y]\n"
        )
    else:
        (tmp_path / "pnpm-workspace.yaml").write_text(f"packages: {json.dumps(patterns)}\n")
    assert lists_package(str(tmp_path), str(tmp_path / "packages/a")) == listed


def test_uv_applies_excludes_last(tmp_path):
    text = '[tool.uv.workspace]\nmembers = ["packages/*"]\nexclude = ["packages/b"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    found = [lists_package(str(tmp_path), str(tmp_path / "packages" / name)) for name in "ab"]
    assert found == [True, False]


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"workspaces": 1}', '{"workspaces": [1]}', "\0"]
)
def test_broken_files_list_nothing(tmp_path, text):
    for name in ("package.json", "pyproject.toml", "pnpm-workspace.yaml"):
        (tmp_path / name).write_text(text)
    assert not lists_package(str(tmp_path), str(tmp_path / "a"))


def test_hostile_patterns_take_little_time(tmp_path):
    """Match patterns for which a backtracking matcher would practically never finish."""
    pattern = "/".join(["**", "a"] * 200 + ["b"])
    (tmp_path / "package.json").write_text(json.dumps({"workspaces": [pattern] * 3}))
    assert not lists_package(str(tmp_path), str(tmp_path / "/".join("a" * 300)))
