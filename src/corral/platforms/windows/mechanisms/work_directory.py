"""Create the private directory for a run without an AppContainer, and remove it when the run ends.

The directory is created together with its access list. A target with a restricted token can write
in it only if the access list has an entry for the target's logon, and if the directory is labelled
Low. So for such a target corral sets both.
"""

from __future__ import annotations

import os

from corral.abi.win32_files import create_directory, private_list
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.steps import unverified
from corral.platforms.windows.files import file_trees
from corral.platforms.windows.mechanisms.restricted_token import own_sids
from corral.record import record

PREFIX = "corral-"
SUBDIRECTORIES = ("home", "tmp", "local", "roaming")


@record
class WorkDirectory:
    """Creates the target's private directory, which contains its home and its temporary files. With
    `low`, even a target with a restricted token of Low integrity can write in it.
    """

    name = "work_directory"
    path: str
    low: bool
    stage: model.Stage = "supervisor"
    verify = unverified

    @property
    def residue(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"private directory {self.path}, removed at the end"

    def apply(self, results: Results) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        create_directory(self.path, _security(low=self.low))
        results.add(PrivateDirectory(path=self.path))
        for name in SUBDIRECTORIES:
            os.mkdir(os.path.join(self.path, name))


@record
class PrivateDirectory:
    path: str

    def release(self) -> None:
        remove(self.path)


def _security(*, low: bool) -> str:
    user, logon = own_sids()
    return private_list(user, logon) + "S:(ML;OICI;NW;;;LW)" if low else private_list(user)


def remove(path: str) -> None:
    if os.path.basename(path).startswith(PREFIX):
        file_trees.remove(path)
