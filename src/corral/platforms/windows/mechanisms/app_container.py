"""Confine files, registry, other processes and the network with an AppContainer.

Each run has its own profile, which is deleted when the run ends. With `state = true`, however, all
runs of a server share one profile, which is kept. A target's token has the profile's package SID
and exactly the capabilities in its plan. corral reads the SID and the capabilities back from the
suspended process before resuming it.

Creating a profile fails with ACCESS_DENIED if a machine policy forbids profiles, or if corral
itself runs in an AppContainer. It fails with NOT_SUPPORTED or E_NOTIMPL if the system does not
support AppContainers. With `state = true`, a profile that already exists is reused. In other runs,
corral deletes such a profile and creates it again.

The profile's folder is the target's home, and its subdirectory `Temp` is the target's TEMP. Windows
itself sets the new process's LOCALAPPDATA, TEMP and TMP to these directories. It refuses to create
a process whose environment has no LOCALAPPDATA, although it replaces the value.
"""

from __future__ import annotations

import os
import time

from corral.abi import win32, win32_security
from corral.abi.prototypes import MissingFunctionError
from corral.abi.win32_process import Process
from corral.abi.win32_security import format_sid, parse_sid
from corral.paths.windows import is_inside
from corral.plan import model
from corral.plan.host import Finding
from corral.plan.model import Results
from corral.platforms.windows.files.access_list import package_sid
from corral.programs import windows_wsl
from corral.record import record

CAPABILITY = "app_container_profile"
LABEL = (CAPABILITY, "AppContainer profiles", "available")
FIREWALL_STOPPED = frozenset({1058, 1062, 1068, 1722, 1753})
"""Errors that CreateAppContainerProfile returns if the firewall service is not running:
SERVICE_DISABLED, SERVICE_NOT_ACTIVE, SERVICE_DEPENDENCY_FAIL, RPC_S_SERVER_UNAVAILABLE,
EPT_S_NOT_REGISTERED.
"""
FIREWALL = "start it as an administrator: `sc.exe config MpsSvc start= auto & sc.exe start MpsSvc`"
DENIED = "run corral outside any sandbox, as a user who may create AppContainer profiles"


@record
class Profile:
    name = "app_container"
    profile: str  # the name of the profile
    capabilities: tuple[str, ...]  # SIDs as text
    home: str  # the planned path of the profile's folder
    keep: bool = False  # keep the profile after the run
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
            made = _create(self)
        except OSError as error:
            why, hint = explain(error)
            text = f"{why}; {hint}" if hint else why
            raise OSError(0, text, self.profile, win32.winerror(error)) from error
        if made != package:
            why = f"Windows gave the profile the SID {format_sid(made)} instead of {self.package}"
            raise OSError(0, why, self.profile)
        found = win32_security.profile_folder(self.package)
        os.makedirs(os.path.join(found, "Temp"), exist_ok=True)
        results.add(ProfileFolder(planned=self.home, found=found))
        results.add(win32_security.Capabilities(package, capabilities))

    def verify(self, results: Results) -> None:
        with win32_security.open_token(results.get(Process).handle.value) as token:
            if not win32_security.is_app_container(token.value):
                raise OSError(0, "the process is not in an AppContainer", self.profile)
            package = win32_security.app_container_sid(token.value)
            if package != parse_sid(self.package):
                text = "the process is in a different AppContainer"
                raise OSError(0, text, self.profile)
            found = win32_security.token_capabilities(token.value)
        having = sorted(format_sid(sid) for sid, _ in found)
        if having != sorted(set(self.capabilities)):
            text = f"the process has the wrong capabilities: {', '.join(having) or 'none'}"
            raise OSError(0, text, self.profile)
        if any(not attributes & win32_security.SE_GROUP_ENABLED for _, attributes in found):
            raise OSError(0, "a capability of the process is not enabled", self.profile)


@record
class ProfileFolder:
    """The planned and the actual path of a profile's folder. They differ if Windows redirects
    AppData. It does so if corral was started by a client that is installed as an MSIX package.
    """

    planned: str
    found: str

    def path(self, path: str) -> str:
        """Return the actual path of a file in the planned folder. Return other paths unchanged."""
        return self.found + path[len(self.planned) :] if is_inside(path, self.planned) else path


def profile_name(digest: str, run: str) -> str:
    """Return the name of a run's profile. It has at most 64 characters, as Windows requires, and is
    in lower case, like the name of the profile's folder.
    """
    return f"corral-{digest[:16]}-{run[:32]}".lower()


def profile_folder(home: str, profile: str) -> str:
    return f"{local_app_data(home)}\\Packages\\{profile}\\AC"


def local_app_data(home: str) -> str:
    return os.environ.get("LOCALAPPDATA", "") or f"{home}\\AppData\\Local"


def explain(error: OSError) -> tuple[str, str]:
    """Return why Windows refused to create or delete a profile, and a hint (or "")."""
    code = win32.winerror(error)
    if code in FIREWALL_STOPPED:
        return "the firewall service, which registers AppContainers, does not answer", FIREWALL
    if code == win32.ERROR_ACCESS_DENIED:
        return "this account is not allowed to create an AppContainer profile here", DENIED
    missing = isinstance(error, MissingFunctionError)
    if missing or code in {win32.ERROR_NOT_SUPPORTED, win32.E_NOTIMPL}:
        return "this version of Windows has no AppContainers", elsewhere()
    return f"{error.filename}: {error.strerror}", ""


def elsewhere() -> str:
    """Return a hint on how to run the server on this machine without AppContainers."""
    return windows_wsl.advice(windows_wsl.find_distribution())


def probe() -> Finding:
    """Check that a profile can be created, has the SID that corral computes, and can be deleted.
    Whether a profile confines a target is checked by `probes/app_container.py`.
    """
    step = Profile(profile=profile_name("probe", os.urandom(8).hex()), capabilities=(), home="")
    started = time.monotonic()
    try:
        made = format_sid(_create(step))
        win32_security.DeleteAppContainerProfile(step.profile)
    except OSError as error:
        why, hint = explain(error)
        return Finding(capability=CAPABILITY, status="absent", evidence=why, hint=hint)
    if made != step.package:
        why = f"Windows gave the profile the SID {made} instead of {step.package}"
        return Finding(capability=CAPABILITY, status="absent", evidence=why, hint=elsewhere())
    took = round(1000 * (time.monotonic() - started))
    evidence = f"a profile was created and deleted in {took} ms"
    return Finding(capability=CAPABILITY, status="proven", evidence=evidence)


def _create(step: Profile) -> bytes:
    arguments = (step.profile, step.profile, "a server run by corral")
    try:
        return win32_security.create_profile(*arguments)
    except OSError as error:
        if win32.winerror(error) != win32.ERROR_ALREADY_EXISTS:
            raise
    if step.keep:
        return win32_security.derive_package_sid(step.profile)
    win32_security.DeleteAppContainerProfile(step.profile)
    return win32_security.create_profile(*arguments)
