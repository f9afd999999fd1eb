"""Test which package a command line starts, and which command lines are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.programs.package_runners import Package, Refusal, format_runner, parse_runner
from corral.servers.reference import parse_reference

PACKAGES = {
    "npx -y pkg": ("npm:pkg", 2),
    "npx pkg a b": ("npm:pkg", 1),
    "npx -y @scope/name@1.2.3 /dir": ("npm:@scope/name@1.2.3", 2),
    "npx --yes pkg@latest": ("npm:pkg", 2),
    "npx -y -- pkg --flag": ("npm:pkg", 3),
    "npx -y --package=@scope/name@2.0.0-rc.1 prog x": ("npm:@scope/name@2.0.0-rc.1#prog", 3),
    "npx -p pkg pkg": ("npm:pkg", 3),
    "/usr/local/bin/npx -y pkg": ("npm:pkg", 2),
    r"C:\node\npx.cmd -y pkg": ("npm:pkg", 2),
    "cmd /c npx -y pkg": ("npm:pkg", 4),
    "npm exec -y -- pkg": ("npm:pkg", 4),
    "pnpm dlx pkg@1.0.0": ("npm:pkg@1.0.0", 2),
    "yarn dlx pkg": ("npm:pkg", 2),
    "bunx pkg": ("npm:pkg", 1),
    "bun x pkg": ("npm:pkg", 2),
    "uvx mcp-server-time --local-timezone=UTC": ("pypi:mcp-server-time", 1),
    "uvx pkg@1.2": ("pypi:pkg==1.2", 1),
    "uvx pkg==1.2.3rc1": ("pypi:pkg==1.2.3rc1", 1),
    "uvx pkg@latest": ("pypi:pkg", 1),
    "uvx --from pkg==2.0 prog": ("pypi:pkg==2.0#prog", 3),
    "uvx --from Mcp_Server.Git mcp-server-git": ("pypi:Mcp_Server.Git", 3),
    "uvx --from pkg[a,b]==1.0 pkg": ("pypi:pkg[a,b]==1.0", 3),
    "uv tool run -q pkg": ("pypi:pkg", 4),
    "pipx run pkg": ("pypi:pkg", 2),
    "pipx run --spec pkg==1.0 prog": ("pypi:pkg==1.0#prog", 4),
}


@pytest.mark.parametrize("line", PACKAGES)
def test_a_runner_is_replaced_by_its_package_and_the_remaining_arguments(line):
    command, *arguments = line.split()
    found = parse_runner(command, arguments)
    assert isinstance(found, Package)
    assert (found.reference, found.used) == PACKAGES[line]
    # `corral run` must accept the reference that was found.
    assert parse_reference(found.reference).kind == found.registry


def test_additional_packages_are_kept():
    found = parse_runner("uvx", ["--with", "mcp<2", "--with=x", "mcp-server-sqlite", "--db"])
    assert (found.reference, found.extra, found.used) == (
        "pypi:mcp-server-sqlite",
        ("mcp<2", "x"),
        4,
    )


@pytest.mark.parametrize("words", [["--python", "3.12"], ["-p", "3.12"], ["--python=3.12"]])
def test_the_python_of_a_runner_is_kept(words):
    found = parse_runner("uvx", [*words, "x", "--db"])
    assert (found.reference, found.flags) == ("pypi:x", ("--python", "3.12"))
    assert found.used == len(words) + 1


REFUSED = {
    "uvx --python >=3.12 pkg": "does not name one exact version of Python",
    "npx -y github:user/repo": "does not name a package",
    "npx -y ./local": "does not name a package",
    "npx -y pkg@^1.0.0": "does not name one exact version",
    "npx -y pkg@next": "does not name one exact version",
    "npx -y https://x/y.tgz": "does not name a package",
    "npx -c sh": "its option -c",
    "npx --call=sh pkg": "its option --call",
    "npx": "names no package",
    "npx -y": "names no package",
    "npx -p a -p b c": "more than one package",
    "npx --with a b": "more than one package",
    "uvx git+https://github.com/x/y": "does not name a PyPI package",
    "uvx --from git+https://github.com/x/y prog": "does not name a PyPI package",
    "uvx pkg>=1": "does not name a PyPI package",
    "uvx --index-url https://evil pkg": "its option --index-url",
    "uv run server.py": "`uv run`",
    "uv --directory /x run server.py": "`uv run`",
    "docker run -i image": "container",
    "podman run image": "container",
    "bash -c npx": "another process",
    "sh server.sh": "another process",
    "cmd /c node x.js": "another process",
    "powershell.exe x": "another process",
}


@pytest.mark.parametrize("line", REFUSED)
def test_commands_that_name_no_clear_package_are_refused_with_a_reason(line):
    command, *arguments = line.split()
    found = parse_runner(command, arguments)
    assert isinstance(found, Refusal)
    assert REFUSED[line] in found.why
    assert found.hint


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("uv --directory /x run server.py --port 1", "/x/.venv/bin/python /x/server.py --port 1"),
        ("uv run --directory=/x server.py", "/x/.venv/bin/python /x/server.py"),
        ("uv --directory /x run weather", "/x/.venv/bin/weather"),
        ("uv --directory /x run python -m weather", "/x/.venv/bin/python -m weather"),
        ("uv --directory /x run mcp run server.py", "/x/.venv/bin/mcp run /x/server.py"),
        ("uv run server.py", ".venv/bin/python server.py"),
        ("uv run --with mcp mcp run /x/server.py", ".venv/bin/python server.py"),
        ("uv run", ".venv/bin/python server.py"),
        ("uv run --directory", ".venv/bin/python server.py"),
    ],
)
def test_the_hint_for_uv_run_starts_the_same_program(line, command):
    program, *arguments = line.split()
    hint = parse_runner(program, arguments).hint
    assert hint == f"start the server from the project's environment: {command}"


@pytest.mark.parametrize(
    "line",
    [
        "node x.js",
        "python3 -m server",
        "/opt/server",
        "npm start",
        "uv pip",
        "yarn run x",
        "pipx list",
    ],
)
def test_other_commands_are_not_runners(line):
    command, *arguments = line.split()
    assert parse_runner(command, arguments) is None


def test_only_commands_that_start_a_container_are_left_unchanged():
    assert parse_runner("docker", ["run", "x"]).leave_alone
    assert not parse_runner("bash", ["-c", "x"]).leave_alone


@pytest.mark.parametrize("reference", [found for found, _ in PACKAGES.values()])
def test_format_runner_starts_the_same_package(reference):
    command, *arguments = format_runner(reference)
    assert parse_runner(command, arguments).reference == reference


@pytest.mark.parametrize("word", ["node", "/x/npm:y", "cursor:github", ""])
def test_format_runner_accepts_only_references_of_packages(word):
    assert format_runner(word) is None


@settings(deadline=None)
@given(st.text(max_size=20), st.lists(st.text(max_size=12), max_size=5))
def test_random_arguments_do_not_crash_the_parser(command, arguments):
    found = parse_runner(command, arguments)
    if isinstance(found, Package):
        assert 0 < found.used <= len(arguments)


@settings(deadline=None)
@given(st.sampled_from(["npx", "uvx"]), st.lists(st.text("-abyp@/=.1[]~ ", max_size=8), max_size=4))
def test_a_package_name_is_never_an_option_or_a_path(command, arguments):
    found = parse_runner(command, arguments)
    if isinstance(found, Package):
        name = found.name.rpartition("/")[2]
        assert name[0] not in ".-"
        assert " " not in found.reference
