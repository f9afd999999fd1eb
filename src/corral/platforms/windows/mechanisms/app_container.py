r"""AppContainer: the wall around files, registry, other processes and the network (layering A).

A profile is made for each run and deleted at its end; with `state = true` there is one for each
server, which stays. The token of a target has its package SID and exactly the capabilities of its
policy, which is read back from the suspended process before it runs.

What fails here, and what is said: ACCESS_DENIED (a policy of the machine, or corral itself runs in
an AppContainer), NOT_SUPPORTED and E_NOTIMPL (no AppContainers here: WSL2), ALREADY_EXISTS (a kept
profile is used again; one of a single run is made anew, since its name is random).

For who composes a plan:
    name = profile_name(digest, run)         # `state`: profile_name(digest, "state")
    Profile(name=name, capabilities=(*network, *grants, *store), keep=policy.state)
    folder(local_app_data, name)             # home of the target; Temp in it is its TEMP

Windows itself points LOCALAPPDATA, TEMP and TMP of the new process there, and wants to find
LOCALAPPDATA in the environment it is given.
"""

from __future__ import annotations

import os

from corral.abi import win32, win32_security, win32_token
from corral.paths.windows import folded
from corral.plan.host import Finding
from corral.platforms.windows.files.access_list import package_sid, sid_bytes, sid_text
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Place
    from corral.platforms.windows.run_context import Scene

CAPABILITY = "app_container_profile"
WSL2 = "run it in WSL2 (corral's Linux walls), or in Windows Sandbox"
POWERS = frozenset((
    "SeAssignPrimaryTokenPrivilege", "SeBackupPrivilege", "SeCreateTokenPrivilege",
    "SeDebugPrivilege", "SeImpersonatePrivilege", "SeLoadDriverPrivilege",
    "SeManageVolumePrivilege", "SeRelabelPrivilege", "SeRestorePrivilege", "SeSecurityPrivilege",
    "SeTakeOwnershipPrivilege", "SeTcbPrivilege",
))  # fmt: skip
DENIED = "run corral outside of any sandbox, as a user who may create AppContainer profiles"


@record
class Profile:
    """`capabilities` are SIDs as text; `home` is where Windows has to put the profile's folder."""

    name: str
    capabilities: tuple[str, ...]
    home: str
    keep: bool = False
    place: Place = "supervisor"

    @property
    def package(self) -> str:
        return package_sid(self.name)

    def describe(self) -> str:
        having = ", ".join(self.capabilities) or "none"
        stays = "kept" if self.keep else "deleted at the end"
        return f"AppContainer {self.name} ({self.package}), {stays}; capabilities: {having}"


def profile_name(digest: str, run: str) -> str:
    """At most 64 characters, all of them lower-case: Windows folds the name for the folder."""
    return f"corral-{digest[:16]}-{run[:32]}".lower()


def folder(local_app_data: str, name: str) -> str:
    return f"{local_app_data}\\Packages\\{name}\\AC"


def apply(step: Profile, scene: Scene) -> None:
    package = sid_bytes(step.package)
    capabilities = tuple(map(sid_bytes, step.capabilities))
    try:
        made = _create(step, package, capabilities)
    except OSError as error:
        why, hint = explain(error)
        text = f"{why}; {hint}" if hint else why
        raise OSError(0, text, step.name, win32.winerror(error)) from error
    if made != package:
        text = f"Windows calls it {sid_text(made)}, not {step.package}"
        raise OSError(0, text, step.name)
    place = win32_security.folder_of(step.package)
    if folded(place) != folded(step.home):
        raise OSError(0, f"its folder is {place}, not {step.home}", step.name)
    os.makedirs(os.path.join(place, "Temp"), exist_ok=True)
    scene.capabilities = win32_security.Capabilities(package, capabilities)


def verify(step: Profile, scene: Scene) -> None:
    """From the token of the suspended process: this package, these capabilities alone, and no
    privilege of an administrator's that walks past access lists.
    """
    with win32_security.open_token(scene.process) as token:
        if not win32_security.is_app_container(token.value):
            raise OSError(0, "the process is not in an AppContainer", step.name)
        package = win32_security.app_container_sid(token.value)
        if package != sid_bytes(step.package):
            raise OSError(0, "the process is in another AppContainer", step.name)
        found = win32_security.token_capabilities(token.value)
        held = powers(win32_token.token_privileges(token.value))
    if held:
        text = f"its token holds {', '.join(held)}: start corral without an administrator's rights"
        raise OSError(0, text, step.name)
    having = sorted(sid_text(sid) for sid, _ in found)
    if having != sorted(set(step.capabilities)):
        text = f"its capabilities are {', '.join(having) or 'none'}"
        raise OSError(0, text, step.name)
    if any(not attributes & win32_security.SE_GROUP_ENABLED for _, attributes in found):
        raise OSError(0, "a capability is not enabled", step.name)


def powers(privileges: Sequence[str]) -> tuple[str, ...]:
    """Those that open what no access list allows."""
    return tuple(sorted(POWERS.intersection(privileges)))


def explain(error: OSError) -> tuple[str, str]:
    """What a failed call of these means, and what can be done about it."""
    code = win32.winerror(error)
    if code == win32.ERROR_ACCESS_DENIED:
        return "this account may not create an AppContainer profile here", DENIED
    if code in {win32.ERROR_NOT_SUPPORTED, win32.E_NOTIMPL} or isinstance(
        error, win32.MissingFunctionError
    ):
        return "this Windows has no AppContainers", WSL2
    return f"{error.filename}: {error.strerror}", ""


def probe() -> Finding:
    """Whether a profile can be made, is what we compute it to be, and goes away again.

    Not yet a wall: whether a process in it starts and is held, the probe that starts one tells.
    """
    name = profile_name("probe", os.urandom(8).hex())
    package = sid_bytes(package_sid(name))
    step = Profile(name=name, capabilities=(), home="")
    try:
        made = _create(step, package, ())
        win32_security.DeleteAppContainerProfile(name)
    except OSError as error:
        why, hint = explain(error)
        return Finding(capability=CAPABILITY, status="absent", evidence=why, hint=hint)
    if made != package:
        why = f"{name} became {sid_text(made)}, where {sid_text(package)} was computed"
        return Finding(capability=CAPABILITY, status="absent", evidence=why, hint=WSL2)
    return Finding(
        capability=CAPABILITY, status="proven", evidence="a profile was made and deleted"
    )


def _create(step: Profile, package: bytes, capabilities: tuple[bytes, ...]) -> bytes:
    arguments = (step.name, step.name, "a server run by corral", package, capabilities)
    try:
        return win32_security.create_profile(*arguments)
    except OSError as error:
        if win32.winerror(error) != win32.ERROR_ALREADY_EXISTS:
            raise
    if step.keep:
        return win32_security.derive_package_sid(step.name)
    win32_security.DeleteAppContainerProfile(step.name)
    return win32_security.create_profile(*arguments)
