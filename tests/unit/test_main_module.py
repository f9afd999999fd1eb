"""Test that `python -m corral` runs the command and does not import modules from the current
directory.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import corral

SOURCE = pathlib.Path(corral.__file__).parent.parent
SHADOW = "import os, pathlib; pathlib.Path(os.environ['MARK']).write_text('ran')"


def call(*words: str, cwd: pathlib.Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **more}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_python_m_corral_works_like_the_corral_command(tmp_path):
    done = call("-m", "corral", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"corral {corral.__version__}\n")
    assert call("-m", "corral", "rnu", cwd=tmp_path).returncode == 2


def test_modules_of_the_current_directory_are_not_imported(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "json.py").write_text(SHADOW)
    (tmp_path / "corral.toml").write_text("version = 1\n")
    done = call("-m", "corral", "schema", cwd=tmp_path, MARK=str(mark))
    assert (done.returncode, mark.exists()) == (0, False), done.stderr
    # Sanity check: without corral, Python does import this module.
    call("-c", "import json", cwd=tmp_path, MARK=str(mark))
    assert mark.exists()


APART = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])  # before another corral that is installed
from corral.api import child_python
told = "import json; print(json.__file__, corral.__file__, *sys.argv[1:])"
subprocess.run([sys.executable, *child_python.build_arguments(told, "a", "b")], check=True)
"""


def test_packages_beside_corral_do_not_replace_the_standard_library(tmp_path):
    site = tmp_path / "site"
    (site / "corral" / "api").mkdir(parents=True)
    for name in ("__init__.py", "api/__init__.py", "api/child_python.py"):
        shutil.copy(SOURCE / "corral" / name, site / "corral" / name)
    (site / "json.py").write_text(SHADOW)
    mark = tmp_path / "mark"
    done = call("-I", "-c", APART, str(site), cwd=tmp_path, MARK=str(mark))
    json_file, corral_file, *words = done.stdout.split()
    assert (json_file, mark.exists()) == (json.__file__, False)
    assert (corral_file, words) == (str(site / "corral" / "__init__.py"), ["a", "b"])
    # Sanity check: without corral's code, Python does import this directory's json.py.
    call("-c", "import json", cwd=site, MARK=str(mark))
    assert mark.exists()
