"""Refuse a `--python PATH` that the server is not allowed to read, before anything is installed
with it.
"""

import os

from corral.cli import what_to_run
from corral.cli.option_parser import Options
from corral.directories import home_directory
from corral.policy.merge import merge
from corral.policy.model import Source
from corral.policy.user_config import load
from corral.programs.needed_files import Caller, home_names, is_program
from corral.programs.scope import Scope


def check_chosen_python(options: Options, sources: list[Source]) -> None:
    """Raise UnchosenReadsError if the server is not allowed to read the chosen Python. The run
    would raise the same error, but only after the installation.
    """
    path = os.path.realpath(options.get("--python") or "")
    if not is_program(path):
        return  # the installation will report that this is not a Python
    home, cwd = os.path.realpath(home_directory()), what_to_run.current_directory()
    policy = merge(sources, ceilings=load().ceilings, home=home, cwd=cwd)
    homes = home_names(home)
    caller = Caller(environment=os.environ, cwd=cwd, home=home.rstrip("/"))
    Scope(caller, homes, grants=policy.grants).check_runtime("--python", path)
