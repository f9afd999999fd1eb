"""AppContainer: the wall around files, registry, other processes and the network.

A profile is made for each run and deleted at its end; with `state = true` there is one for each
server, which stays. The token of a target has its package SID and exactly the capabilities of its
policy. Both are read back from the suspended process before it runs.

What fails, and what is reported: ACCESS_DENIED (a policy of the machine, or corral itself runs in
an AppContainer), NOT_SUPPORTED and E_NOTIMPL (no AppContainers here: WSL2), ALREADY_EXISTS (a kept
profile is used again; that of a single run is made again, since its name is random).

The profile's folder is the home of the target, and `Temp` in it is its TEMP. Windows itself points
LOCALAPPDATA, TEMP and TMP of the new process there, and expects LOCALAPPDATA in the environment
that it is given.
"""

from __future__ import annotations

import os

from corral.abi import win32, win32_security, win32_token
from corral.abi.prototypes import MissingFunctionError
from corral.abi.win32_process import Process
from corral.abi.win32_security import format_sid, parse_sid
from corral.paths.windows import fold_path
from corral.plan import model
from corral.plan.host import Finding
from corral.plan.model import Results
from corral.platforms.windows.files.access_list import package_sid
from corral.record import record

CAPABILITY = "app_container_profile"
LABEL = (CAPABILITY, "AppContainer profiles", "available")
WSL2 = "run it in WSL2 (corral's Linux walls), or in Windows Sandbox"
DANGEROUS = frozenset((
    "SeAssignPrimaryTokenPrivilege", "SeBackupPrivilege", "SeCreateTokenPrivilege",
    "SeDebugPrivilege", "SeImpersonatePrivilege", "SeLoadDriverPrivilege",
    "SeManageVolumePrivilege", "SeRelabelPrivilege", "SeRestorePrivilege", "SeSecurityPrivilege",
    "SeTakeOwnershipPrivilege", "SeTcbPrivilege",
))  # fmt: skip
"""Privileges that open what no access list allows."""
DENIED = "run corral outside of any sandbox, as a user who may create AppContainer profiles"


@record
class Profile:
    """`capabilities` are SIDs as text; `home` is where Windows has to put the profile's folder."""

    name = "app_container"
    profile: str
    capabilities: tuple[str, ...]
    home: str
    keep: bool = False
    stage: model.Stage = "supervisor"

    @property
    def package(self) -> str:
        return package_sid(self.profile)

    def describe(self) -> str:
        having = ", ".join(self.capabilities) or "none"
        stays = "kept" if self.keep else "deleted at the end"
        return f"AppContainer {self.profile} ({self.package}), {stays}; capabilities: {having}"

    def apply(self, results: Results) -> None:
        package = parse_sid(self.package)
        capabilities = tuple(map(parse_sid, self.capabilities))
        try:
            made = _create(self, capabilities)
        except OSError as error:
            why, hint = explain(error)
            text = f"{why}; {hint}" if hint else why
            raise OSError(0, text, self.profile, win32.winerror(error)) from error
        if made != package:
            why = f"Windows calls it {format_sid(made)}, not {self.package}"
            raise OSError(0, why, self.profile)
        found = win32_security.profile_folder(self.package)
        if fold_path(found) != fold_path(self.home):
            raise OSError(0, f"its folder is {found}, not {self.home}", self.profile)
        os.makedirs(os.path.join(found, "Temp"), exist_ok=True)
        results.add(win32_security.Capabilities(package, capabilities))

    def verify(self, results: Results) -> None:
        """Read the token: this package, these capabilities alone, no privilege of `DANGEROUS`."""
        with win32_security.open_token(results.get(Process).handle.value) as token:
            if not win32_security.is_app_container(token.value):
                raise OSError(0, "the process is not in an AppContainer", self.profile)
            package = win32_security.app_container_sid(token.value)
            if package != parse_sid(self.package):
                raise OSError(0, "the process is in another AppContainer", self.profile)
            found = win32_security.token_capabilities(token.value)
            held = sorted(DANGEROUS.intersection(win32_token.token_privileges(token.value)))
        if held:
            advice = "start corral without an administrator's rights"
            raise OSError(0, f"its token holds {', '.join(held)}: {advice}", self.profile)
        having = sorted(format_sid(sid) for sid, _ in found)
        if having != sorted(set(self.capabilities)):
            text = f"its capabilities are {', '.join(having) or 'none'}"
            raise OSError(0, text, self.profile)
        if any(not attributes & win32_security.SE_GROUP_ENABLED for _, attributes in found):
            raise OSError(0, "a capability is not enabled", self.profile)


def profile_name(digest: str, run: str) -> str:
    """At most 64 characters, all of them lower-case: Windows folds the name for the folder."""
    return f"corral-{digest[:16]}-{run[:32]}".lower()


def profile_folder(home: str, profile: str) -> str:
    local = os.environ.get("LOCALAPPDATA", "") or f"{home}\\AppData\\Local"
    return f"{local}\\Packages\\{profile}\\AC"


def explain(error: OSError) -> tuple[str, str]:
    """Return what a failed call on a profile means, and what the user can do about it."""
    code = win32.winerror(error)
    if code == win32.ERROR_ACCESS_DENIED:
        return "this account may not create an AppContainer profile here", DENIED
    missing = isinstance(error, MissingFunctionError)
    if missing or code in {win32.ERROR_NOT_SUPPORTED, win32.E_NOTIMPL}:
        return "this Windows has no AppContainers", WSL2
    return f"{error.filename}: {error.strerror}", ""


def probe() -> Finding:
    """Try whether a profile can be made, has the SID that corral computes, and can be deleted.

    This does not yet prove a wall: `probes/app_container.py` starts a process in one.
    """
    step = Profile(profile=profile_name("probe", os.urandom(8).hex()), capabilities=(), home="")
    try:
        made = format_sid(_create(step, ()))
        win32_security.DeleteAppContainerProfile(step.profile)
    except OSError as error:
        why, hint = explain(error)
        return Finding(capability=CAPABILITY, status="absent", evidence=why, hint=hint)
    if made != step.package:
        why = f"{step.profile} became {made}, where {step.package} was computed"
        return Finding(capability=CAPABILITY, status="absent", evidence=why, hint=WSL2)
    return Finding(
        capability=CAPABILITY, status="proven", evidence="a profile was made and deleted"
    )


def _create(step: Profile, capabilities: tuple[bytes, ...]) -> bytes:
    arguments = (step.profile, step.profile, "a server run by corral", capabilities)
    try:
        return win32_security.create_profile(*arguments)
    except OSError as error:
        if win32.winerror(error) != win32.ERROR_ALREADY_EXISTS:
            raise
    if step.keep:
        return win32_security.derive_package_sid(step.profile)
    win32_security.DeleteAppContainerProfile(step.profile)
    return win32_security.create_profile(*arguments)
