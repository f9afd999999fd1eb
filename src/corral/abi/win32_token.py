"""Restricted tokens, integrity levels, desktops and process mitigations."""

from __future__ import annotations

import ctypes

from corral.abi.win32 import (
    BOOL,
    DWORD,
    ERROR_INSUFFICIENT_BUFFER,
    HANDLE,
    LONG,
    LPCWSTR,
    LPVOID,
    PSID,
    SIZE_T,
    WCHAR,
    Handle,
    LocalFree,
    function,
    winerror,
)
from corral.abi.win32_security import (
    SID_AND_ATTRIBUTES,
    TOKEN_GROUPS,
    OpenProcessToken,
    copied_sid,
    token_information,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

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
DESKTOP_WRITEOBJECTS = 0x80
READ_CONTROL = 0x20000
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
    _fields_ = (
        ("nLength", DWORD),
        ("lpSecurityDescriptor", LPVOID),
        ("bInheritHandle", BOOL),
    )


CreateRestrictedToken = function(
    "advapi32", "CreateRestrictedToken", BOOL,
    HANDLE, DWORD, DWORD, LPVOID, DWORD, LPVOID, DWORD, LPVOID, LPVOID,
)  # fmt: skip
SetTokenInformation = function(
    "advapi32", "SetTokenInformation", BOOL, HANDLE, DWORD, LPVOID, DWORD
)
DuplicateToken = function("advapi32", "DuplicateToken", BOOL, HANDLE, DWORD, LPVOID)
ImpersonateLoggedOnUser = function("advapi32", "ImpersonateLoggedOnUser", BOOL, HANDLE)
RevertToSelf = function("advapi32", "RevertToSelf", BOOL)
LookupPrivilegeNameW = function(
    "advapi32", "LookupPrivilegeNameW", BOOL, LPCWSTR, LPVOID, LPVOID, LPVOID
)
ConvertSidToStringSidW = function("advapi32", "ConvertSidToStringSidW", BOOL, PSID, LPVOID)
ConvertStringSidToSidW = function("advapi32", "ConvertStringSidToSidW", BOOL, LPCWSTR, LPVOID)
ConvertStringSecurityDescriptorToSecurityDescriptorW = function(
    "advapi32", "ConvertStringSecurityDescriptorToSecurityDescriptorW", BOOL,
    LPCWSTR, DWORD, LPVOID, LPVOID,
)  # fmt: skip
ConvertSecurityDescriptorToStringSecurityDescriptorW = function(
    "advapi32", "ConvertSecurityDescriptorToStringSecurityDescriptorW", BOOL,
    LPVOID, DWORD, DWORD, LPVOID, LPVOID,
)  # fmt: skip
GetSecurityDescriptorDacl = function(
    "advapi32", "GetSecurityDescriptorDacl", BOOL, LPVOID, LPVOID, LPVOID, LPVOID
)
GetCurrentProcess = function("kernel32", "GetCurrentProcess", HANDLE)
GetProcessMitigationPolicy = function(
    "kernel32", "GetProcessMitigationPolicy", BOOL, HANDLE, DWORD, LPVOID, SIZE_T
)
CreateDesktopW = function(
    "user32", "CreateDesktopW", HANDLE, LPCWSTR, LPCWSTR, LPVOID, DWORD, DWORD, LPVOID
)
CloseDesktop = function("user32", "CloseDesktop", BOOL, HANDLE)
GetProcessWindowStation = function("user32", "GetProcessWindowStation", HANDLE)
GetUserObjectInformationW = function(
    "user32", "GetUserObjectInformationW", BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID
)
GetUserObjectSecurity = function(
    "user32", "GetUserObjectSecurity", BOOL, HANDLE, LPVOID, LPVOID, DWORD, LPVOID
)


def own_token(access: int) -> Handle:
    """The primary token of the process that asks."""
    token = HANDLE()
    OpenProcessToken(GetCurrentProcess(), access, ctypes.byref(token))
    return Handle(token.value or 0)


def create_restricted_token(token: int, flags: int, restricting: Sequence[bytes]) -> Handle:
    entries, kept = _groups(restricting)
    made = HANDLE()
    CreateRestrictedToken(
        token, flags, 0, None, 0, None, len(kept), entries if kept else None, ctypes.byref(made)
    )
    return Handle(made.value or 0)


def token_user(token: int) -> bytes:
    raw = token_information(token, TokenUser)  # the SID lies in it
    return copied_sid(TOKEN_USER.from_buffer(raw).User.Sid)


def token_groups(token: int, kind: int) -> tuple[tuple[bytes, int], ...]:
    """(SID, attributes) of each; `kind` is TokenGroups or TokenRestrictedSids."""
    raw = token_information(token, kind)
    count = TOKEN_GROUPS.from_buffer(raw).GroupCount
    entries = (SID_AND_ATTRIBUTES * count).from_buffer(raw, TOKEN_GROUPS.Groups.offset)
    return tuple((copied_sid(entry.Sid), int(entry.Attributes)) for entry in entries)


def token_privileges(token: int) -> tuple[str, ...]:
    """The names of all privileges that the token holds, enabled or not."""
    raw = token_information(token, TokenPrivileges)
    count = TOKEN_PRIVILEGES.from_buffer(raw).PrivilegeCount
    place = TOKEN_PRIVILEGES.Privileges.offset
    entries = (LUID_AND_ATTRIBUTES * count).from_buffer(raw, place)
    return tuple(_privilege_name(entry.Luid) for entry in entries)


def token_integrity(token: int) -> bytes:
    raw = token_information(token, TokenIntegrityLevel)  # the SID lies in it
    return copied_sid(TOKEN_MANDATORY_LABEL.from_buffer(raw).Label.Sid)


def set_token_integrity(token: int, sid: bytes) -> None:
    kept = ctypes.create_string_buffer(sid, len(sid))
    label = TOKEN_MANDATORY_LABEL()
    label.Label.Sid = ctypes.addressof(kept)
    label.Label.Attributes = SE_GROUP_INTEGRITY
    size = ctypes.sizeof(label) + len(sid)
    SetTokenInformation(token, TokenIntegrityLevel, ctypes.byref(label), size)


def set_token_default_dacl(token: int, text: str) -> None:
    """What the process's own objects get when nothing else is said, in SDDL."""
    with SecurityDescriptor(text) as descriptor:
        present, defaulted, dacl = BOOL(), BOOL(), LPVOID()
        GetSecurityDescriptorDacl(
            descriptor.address,
            ctypes.byref(present),
            ctypes.byref(dacl),
            ctypes.byref(defaulted),
        )
        value = TOKEN_DEFAULT_DACL(dacl.value)
        SetTokenInformation(token, TokenDefaultDacl, ctypes.byref(value), ctypes.sizeof(value))


def impersonation_token(token: int) -> Handle:
    made = HANDLE()
    DuplicateToken(token, SecurityImpersonation, ctypes.byref(made))
    return Handle(made.value or 0)


def sid_text(sid: bytes) -> str:
    kept = ctypes.create_string_buffer(sid, len(sid))
    place = LPVOID()
    ConvertSidToStringSidW(ctypes.addressof(kept), ctypes.byref(place))
    return _taken_text(place)


def sid_of(text: str) -> bytes:
    place = PSID()
    ConvertStringSidToSidW(text, ctypes.byref(place))
    try:
        return copied_sid(place.value or 0)
    finally:
        LocalFree(place)


class SecurityDescriptor:
    """A security descriptor made from SDDL, for as long as `with` lasts."""

    __slots__ = ("address",)

    def __init__(self, text: str) -> None:
        place = LPVOID()
        ConvertStringSecurityDescriptorToSecurityDescriptorW(
            text, SDDL_REVISION_1, ctypes.byref(place), None
        )
        self.address = place.value or 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        LocalFree(self.address)


class Desktop:
    """An own desktop of the caller's window station; it is gone with its last handle."""

    __slots__ = ("_value",)

    def __init__(self, name: str, access: int, security: str) -> None:
        with SecurityDescriptor(security) as descriptor:
            attributes = SECURITY_ATTRIBUTES(
                ctypes.sizeof(SECURITY_ATTRIBUTES), descriptor.address, 0
            )
            self._value = CreateDesktopW(name, None, None, 0, access, ctypes.byref(attributes))

    @property
    def value(self) -> int:
        return self._value

    def close(self) -> None:
        value, self._value = self._value, 0
        if value:
            CloseDesktop(value)


def user_object_name(handle: int) -> str:
    needed = DWORD()
    try:
        GetUserObjectInformationW(handle, UOI_NAME, None, 0, ctypes.byref(needed))
    except OSError as error:
        if winerror(error) != ERROR_INSUFFICIENT_BUFFER:
            raise
    text = (WCHAR * (needed.value // 2 + 1))()
    GetUserObjectInformationW(handle, UOI_NAME, text, needed.value, ctypes.byref(needed))
    return bytes(text).decode("utf-16-le", "surrogatepass").partition("\0")[0]


def user_object_label(handle: int) -> str:
    """The mandatory label of a desktop as SDDL; empty if it has none of its own."""
    wanted, needed = DWORD(LABEL_SECURITY_INFORMATION), DWORD()
    try:
        GetUserObjectSecurity(handle, ctypes.byref(wanted), None, 0, ctypes.byref(needed))
    except OSError as error:
        if winerror(error) != ERROR_INSUFFICIENT_BUFFER:
            raise
    raw = ctypes.create_string_buffer(max(1, needed.value))
    GetUserObjectSecurity(handle, ctypes.byref(wanted), raw, len(raw), ctypes.byref(needed))
    place = LPVOID()
    ConvertSecurityDescriptorToStringSecurityDescriptorW(
        raw, SDDL_REVISION_1, LABEL_SECURITY_INFORMATION, ctypes.byref(place), None
    )
    return _taken_text(place)


def mitigation_flags(process: int, policy: int) -> int:
    """The `Flags` of a PROCESS_MITIGATION_..._POLICY: all that are used here are one DWORD."""
    flags = DWORD()
    GetProcessMitigationPolicy(process, policy, ctypes.byref(flags), ctypes.sizeof(flags))
    return flags.value


def _groups(
    sids: Sequence[bytes],
) -> tuple[ctypes.Array[SID_AND_ATTRIBUTES], list[ctypes.Array[ctypes.c_char]]]:
    kept = [ctypes.create_string_buffer(sid, len(sid)) for sid in sids]
    entries = (SID_AND_ATTRIBUTES * max(1, len(kept)))()
    for entry, sid in zip(entries, kept, strict=False):
        entry.Sid = ctypes.addressof(sid)
    return entries, kept


def _privilege_name(luid: LUID) -> str:
    size = DWORD(64)
    text = (WCHAR * size.value)()
    LookupPrivilegeNameW(None, ctypes.byref(luid), text, ctypes.byref(size))
    return bytes(text).decode("utf-16-le").partition("\0")[0]


def _taken_text(place: LPVOID) -> str:
    try:
        return ctypes.wstring_at(place.value or 0)
    finally:
        LocalFree(place)
