"""The private directory of a run without an AppContainer, which brings one of its own.

Made with its access list, removed at the end. In layering B the target writes only where its logon
may write and the label is Low, so that is what its own directory says.
"""

from __future__ import annotations

import os

from corral.abi import win32_token as tokens
from corral.abi.win32_files import create_directory
from corral.abi.win32_security import TOKEN_QUERY
from corral.platforms.windows.files import remove_directory
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.windows.run_context import Scene

PREFIX = "corral-"
ROOMS = ("home", "tmp", "local", "roaming")


@record
class WorkDirectory:
    """`low`: for a target with a restricted token of Low integrity."""

    path: str
    low: bool
    place: Place = "supervisor"

    def describe(self) -> str:
        return f"private directory {self.path}, removed at the end"


def apply(step: WorkDirectory, scene: Scene) -> None:
    os.makedirs(os.path.dirname(step.path), exist_ok=True)
    create_directory(step.path, _security(low=step.low))
    scene.undo.append(lambda: remove(step.path))
    for room in ROOMS:
        os.mkdir(os.path.join(step.path, room))


def _security(*, low: bool) -> str:
    from corral.platforms.windows.mechanisms.restricted_token import logon_sid

    with tokens.own_token(TOKEN_QUERY) as own:
        user = tokens.sid_text(tokens.token_user(own.value))
        groups = tokens.token_groups(own.value, tokens.TokenGroups)
    text = f"D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;{user})"
    if low:
        text += f"(A;OICI;FA;;;{tokens.sid_text(logon_sid(groups))})S:(ML;OICI;NW;;;LW)"
    return text


def remove(path: str) -> None:
    if os.path.basename(path).startswith(PREFIX):
        remove_directory.remove(path)
