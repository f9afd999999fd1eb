"""Bind calls for restricted tokens, integrity levels, desktops and process mitigations."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from corral.abi.prototypes import Function
from corral.abi.win32 import (
    BOOL,
    DWORD,
    HANDLE,
    LONG,
    LPCWSTR,
    LPVOID,
    SIZE_T,
    WCHAR,
    Handle,
    LocalFree,
    advapi32,
    function,
    kernel32,
    made_handle,
    read_sized,
)
from corral.abi.win32_process import GetCurrentProcess
from corral.abi.win32_security import (
    SID_AND_ATTRIBUTES,
    OpenProcessToken,
    SidList,
    copy_sid,
    token_information,
)

TOKEN_ASSIGN_PRIMARY = 0x1
TOKEN_DUPLICATE = 0x2
TOKEN_IMPERSONATE = 0x4
TOKEN_ADJUST_DEFAULT = 0x80
DISABLE_MAX_PRIVILEGE = 0x1
LUA_TOKEN = 0x4
WRITE_RESTRICTED = 0x8
SE_GROUP_USE_FOR_DENY_ONLY = 0x10
SE_GROUP_INTEGRITY = 0x20
SE_GROUP_LOGON_ID = 0xC0000000
SDDL_REVISION_1 = 1

# TOKEN_INFORMATION_CLASS
TokenUser = 1
TokenGroups = 2
TokenPrivileges = 3
TokenDefaultDacl = 6
TokenRestrictedSids = 11
TokenIntegrityLevel = 25

# SECURITY_IMPERSONATION_LEVEL
SecurityImpersonation = 2

FILE_READ_DATA = 0x1
FILE_WRITE_DATA = 0x2
DESKTOP_READOBJECTS = 0x1
DESKTOP_CREATEWINDOW = 0x2
DESKTOP_CREATEMENU = 0x4
DESKTOP_ENUMERATE = 0x40
DESKTOP_WRITEOBJECTS = 0x80
WINSTA_READATTRIBUTES = 0x2
WINSTA_CREATEDESKTOP = 0x8
WINSTA_ACCESSGLOBALATOMS = 0x20
READ_CONTROL = 0x20000
WRITE_DAC = 0x40000
WRITE_OWNER = 0x80000
DACL_SECURITY_INFORMATION = 0x4
LABEL_SECURITY_INFORMATION = 0x10
UOI_NAME = 2

PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY = 0x20007
PROC_THREAD_ATTRIBUTE_CHILD_PROCESS_POLICY = 0x2000E
PROCESS_CREATION_CHILD_PROCESS_RESTRICTED = 0x1
PROCESS_CREATION_MITIGATION_POLICY_STRICT_HANDLE_CHECKS_ALWAYS_ON = 1 << 24
PROCESS_CREATION_MITIGATION_POLICY_EXTENSION_POINT_DISABLE_ALWAYS_ON = 1 << 32
PROCESS_CREATION_MITIGATION_POLICY_IMAGE_LOAD_NO_REMOTE_ALWAYS_ON = 1 << 52
PROCESS_CREATION_MITIGATION_POLICY_IMAGE_LOAD_NO_LOW_LABEL_ALWAYS_ON = 1 << 56

# PROCESS_MITIGATION_POLICY
ProcessStrictHandleCheckPolicy = 3
ProcessExtensionPointDisablePolicy = 6
ProcessImageLoadPolicy = 10
ProcessChildProcessPolicy = 13


class LUID(ctypes.Structure):
    _fields_ = (("LowPart", DWORD), ("HighPart", LONG))


class LUID_AND_ATTRIBUTES(ctypes.Structure):
    _fields_ = (("Luid", LUID), ("Attributes", DWORD))


class TOKEN_PRIVILEGES(ctypes.Structure):
    _fields_ = (("PrivilegeCount", DWORD), ("Privileges", LUID_AND_ATTRIBUTES * 1))


class TOKEN_USER(ctypes.Structure):
    _fields_ = (("User", SID_AND_ATTRIBUTES),)


class TOKEN_MANDATORY_LABEL(ctypes.Structure):
    _fields_ = (("Label", SID_AND_ATTRIBUTES),)


class TOKEN_DEFAULT_DACL(ctypes.Structure):
    _fields_ = (("DefaultDacl", LPVOID),)


class SECURITY_ATTRIBUTES(ctypes.Structure):
    _fields_ = (("nLength", DWORD), ("lpSecurityDescriptor", LPVOID), ("bInheritHandle", BOOL))


CreateRestrictedToken = advapi32(
    "CreateRestrictedToken", BOOL,
    HANDLE, DWORD, DWORD, LPVOID, DWORD, LPVOID, DWORD, LPVOID, LPVOID,
)  # fmt: skip
SetTokenInformation = advapi32("SetTokenInformation", BOOL, HANDLE, DWORD, LPVOID, DWORD)
DuplicateToken = advapi32("DuplicateToken", BOOL, HANDLE, DWORD, LPVOID)
ImpersonateLoggedOnUser = advapi32("ImpersonateLoggedOnUser", BOOL, HANDLE)
RevertToSelf = advapi32("RevertToSelf", BOOL)
LookupPrivilegeNameW = advapi32("LookupPrivilegeNameW", BOOL, LPCWSTR, LPVOID, LPVOID, LPVOID)
ConvertStringSecurityDescriptorToSecurityDescriptorW = advapi32(
    "ConvertStringSecurityDescriptorToSecurityDescriptorW", BOOL, LPCWSTR, DWORD, LPVOID, LPVOID
)
ConvertSecurityDescriptorToStringSecurityDescriptorW = advapi32(
    "ConvertSecurityDescriptorToStringSecurityDescriptorW", BOOL,
    LPVOID, DWORD, DWORD, LPVOID, LPVOID,
)  # fmt: skip
GetSecurityDescriptorDacl = advapi32(
    "GetSecurityDescriptorDacl", BOOL, LPVOID, LPVOID, LPVOID, LPVOID
)
GetProcessMitigationPolicy = kernel32(
    "GetProcessMitigationPolicy", BOOL, HANDLE, DWORD, LPVOID, SIZE_T
)
user32 = partial(function, "user32")
CreateDesktopW = user32("CreateDesktopW", HANDLE, LPCWSTR, LPCWSTR, LPVOID, DWORD, DWORD, LPVOID)
CloseDesktop = user32("CloseDesktop", BOOL, HANDLE)
CreateWindowStationW = user32("CreateWindowStationW", HANDLE, LPCWSTR, DWORD, DWORD, LPVOID)
CloseWindowStation = user32("CloseWindowStation", BOOL, HANDLE)
SetProcessWindowStation = user32("SetProcessWindowStation", BOOL, HANDLE)
SetUserObjectSecurity = user32("SetUserObjectSecurity", BOOL, HANDLE, LPVOID, LPVOID)
GetProcessWindowStation = user32("GetProcessWindowStation", HANDLE)
GetUserObjectInformationW = user32(
    "GetUserObjectInformationW", BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID
)
GetUserObjectSecurity = user32("GetUserObjectSecurity", BOOL, HANDLE, LPVOID, LPVOID, DWORD, LPVOID)


def own_token(access: int) -> Handle:
    return made_handle(OpenProcessToken, GetCurrentProcess(), access)


def create_restricted_token(token: int, flags: int, restricting: Sequence[bytes]) -> Handle:
    sids = SidList(restricting)
    return made_handle(
        CreateRestrictedToken, token, flags, 0, None, 0, None, len(sids), sids.address
    )


def token_user(token: int) -> bytes:
    raw = token_information(token, TokenUser)  # keep this buffer, because `Sid` points into it
    return copy_sid(TOKEN_USER.from_buffer(raw).User.Sid)


def token_privileges(token: int) -> tuple[str, ...]:
    """Return the names of all privileges of a token, enabled or not."""
    raw = token_information(token, TokenPrivileges)
    count = TOKEN_PRIVILEGES.from_buffer(raw).PrivilegeCount
    offset = TOKEN_PRIVILEGES.Privileges.offset
    entries = (LUID_AND_ATTRIBUTES * count).from_buffer(raw, offset)
    return tuple(_privilege_name(entry.Luid) for entry in entries)


def token_integrity(token: int) -> bytes:
    # Keep this buffer, because `Sid` points into it.
    raw = token_information(token, TokenIntegrityLevel)
    return copy_sid(TOKEN_MANDATORY_LABEL.from_buffer(raw).Label.Sid)


def set_token_integrity(token: int, sid: bytes) -> None:
    buffer = ctypes.create_string_buffer(sid, len(sid))
    label = TOKEN_MANDATORY_LABEL()
    label.Label.Sid = ctypes.addressof(buffer)
    label.Label.Attributes = SE_GROUP_INTEGRITY
    size = ctypes.sizeof(label) + len(sid)
    SetTokenInformation(token, TokenIntegrityLevel, ctypes.byref(label), size)


def set_token_default_dacl(token: int, text: str) -> None:
    """Set the default access list for objects that the token's process creates. `text` is SDDL."""
    with security_attributes(text) as attributes:
        present, dacl, defaulted = BOOL(), LPVOID(), BOOL()
        results = map(ctypes.byref, (present, dacl, defaulted))
        GetSecurityDescriptorDacl(attributes.lpSecurityDescriptor, *results)
        value = TOKEN_DEFAULT_DACL(dacl.value)
        SetTokenInformation(token, TokenDefaultDacl, ctypes.byref(value), ctypes.sizeof(value))


def impersonation_token(token: int) -> Handle:
    return made_handle(DuplicateToken, token, SecurityImpersonation)


@contextmanager
def security_attributes(text: str) -> Iterator[SECURITY_ATTRIBUTES]:
    """Yield attributes with a security descriptor made from SDDL. They are valid only inside the
    `with` block.
    """
    address = LPVOID()
    ConvertStringSecurityDescriptorToSecurityDescriptorW(
        text, SDDL_REVISION_1, ctypes.byref(address), None
    )
    try:
        yield SECURITY_ATTRIBUTES(ctypes.sizeof(SECURITY_ATTRIBUTES), address, 0)
    finally:
        LocalFree(address)


class UserObject:
    """A window station or desktop. Windows removes it when its last handle is closed."""

    __slots__ = ("_close", "value")

    def __init__(self, value: int, close: Function) -> None:
        self.value = value
        self._close = close

    def close(self) -> None:
        value, self.value = self.value, 0
        if value:
            self._close(value)


def open_window_station(access: int, security: str) -> UserObject:
    """Open the non-interactive window station of this logon, or create it if it does not exist yet.

    `security` is the SDDL for a new station. Only administrators may name a window station. Without
    a name, Windows opens the logon's only non-interactive station.
    """
    with security_attributes(security) as attributes:
        value = CreateWindowStationW(None, 0, access, ctypes.byref(attributes))
    return UserObject(value, CloseWindowStation)


def create_desktop(station: int, name: str, access: int, security: str) -> UserObject:
    """Create a desktop in the window station `station`. CreateDesktopW creates desktops only in the
    window station of the process, so `station` is this process's window station during the call.
    """
    own = GetProcessWindowStation()
    SetProcessWindowStation(station)
    try:
        with security_attributes(security) as attributes:
            made = CreateDesktopW(name, None, None, 0, access, ctypes.byref(attributes))
    finally:
        SetProcessWindowStation(own)
    return UserObject(made, CloseDesktop)


def user_object_name(handle: int) -> str:
    raw = read_sized(GetUserObjectInformationW, handle, UOI_NAME)
    return raw.decode("utf-16-le", "surrogatepass").partition("\0")[0]


def user_object_security(handle: int, kind: int = DACL_SECURITY_INFORMATION) -> bytes:
    return bytes(read_sized(GetUserObjectSecurity, handle, ctypes.byref(DWORD(kind))))


def set_user_object_dacl(handle: int, descriptor: bytes) -> None:
    buffer = ctypes.create_string_buffer(descriptor, len(descriptor))
    wanted = DWORD(DACL_SECURITY_INFORMATION)
    SetUserObjectSecurity(handle, ctypes.byref(wanted), buffer)


def set_user_object_label(handle: int, text: str) -> None:
    with security_attributes(text) as attributes:
        wanted = DWORD(LABEL_SECURITY_INFORMATION)
        SetUserObjectSecurity(handle, ctypes.byref(wanted), attributes.lpSecurityDescriptor)


def user_object_label(handle: int) -> str:
    """Return the mandatory label of an object as SDDL, or "" if the object itself has no label."""
    raw = user_object_security(handle, LABEL_SECURITY_INFORMATION)
    address = LPVOID()
    ConvertSecurityDescriptorToStringSecurityDescriptorW(
        raw, SDDL_REVISION_1, LABEL_SECURITY_INFORMATION, ctypes.byref(address), None
    )
    try:
        return ctypes.wstring_at(address.value or 0)
    finally:
        LocalFree(address)


def mitigation_flags(process: int, policy: int) -> int:
    """Return the `Flags` of a PROCESS_MITIGATION_..._POLICY. Each of these structures that corral
    reads has the size of a DWORD.
    """
    flags = DWORD()
    GetProcessMitigationPolicy(process, policy, ctypes.byref(flags), ctypes.sizeof(flags))
    return flags.value


def _privilege_name(luid: LUID) -> str:
    size = DWORD(64)
    text = (WCHAR * size.value)()
    LookupPrivilegeNameW(None, ctypes.byref(luid), text, ctypes.byref(size))
    return bytes(text).decode("utf-16-le").partition("\0")[0]
