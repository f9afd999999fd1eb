"""SIDs, AppContainer profiles, capabilities, security descriptors and what a token says of itself.

SIDs and security descriptors cross this border as bytes: their layout is the same on every machine
([MS-DTYP] 2.4.2, 2.4.6), and `corral.windows.access_list` reads and changes it without any call.
"""

from __future__ import annotations

import ctypes

from corral.abi.win32 import (
    BOOL,
    DWORD,
    ERROR_INSUFFICIENT_BUFFER,
    HANDLE,
    HRESULT,
    LPCWSTR,
    LPVOID,
    PSID,
    Handle,
    LocalFree,
    function,
    winerror,
)

ERROR_NOT_FOUND = 1168
SE_GROUP_ENABLED = 0x4
DACL_SECURITY_INFORMATION = 0x4
TOKEN_QUERY = 0x8

# TOKEN_INFORMATION_CLASS
TokenIsAppContainer = 29
TokenCapabilities = 30
TokenAppContainerSid = 31


class SID_AND_ATTRIBUTES(ctypes.Structure):
    _fields_ = (("Sid", PSID), ("Attributes", DWORD))


class SECURITY_CAPABILITIES(ctypes.Structure):
    _fields_ = (
        ("AppContainerSid", PSID),
        ("Capabilities", LPVOID),
        ("CapabilityCount", DWORD),
        ("Reserved", DWORD),
    )


class TOKEN_APPCONTAINER_INFORMATION(ctypes.Structure):
    _fields_ = (("TokenAppContainer", PSID),)


class TOKEN_GROUPS(ctypes.Structure):
    _fields_ = (("GroupCount", DWORD), ("Groups", SID_AND_ATTRIBUTES * 1))


CreateAppContainerProfile = function(
    "userenv", "CreateAppContainerProfile", HRESULT,
    LPCWSTR, LPCWSTR, LPCWSTR, LPVOID, DWORD, LPVOID, check="hresult",
)  # fmt: skip
DeleteAppContainerProfile = function(
    "userenv", "DeleteAppContainerProfile", HRESULT, LPCWSTR, check="hresult"
)
DeriveAppContainerSidFromAppContainerName = function(
    "userenv", "DeriveAppContainerSidFromAppContainerName", HRESULT,
    LPCWSTR, LPVOID, check="hresult",
)  # fmt: skip
GetAppContainerFolderPath = function(
    "userenv", "GetAppContainerFolderPath", HRESULT, LPCWSTR, LPVOID, check="hresult"
)
DeriveCapabilitySidsFromName = function(
    "kernelbase", "DeriveCapabilitySidsFromName", BOOL, LPCWSTR, LPVOID, LPVOID, LPVOID, LPVOID
)
# NULL is FreeSid's success, and what callers could do about a failure is nothing.
FreeSid = function("advapi32", "FreeSid", LPVOID, PSID, check="any")
GetLengthSid = function("advapi32", "GetLengthSid", DWORD, PSID, check="any")
CoTaskMemFree = function("ole32", "CoTaskMemFree", None, LPVOID, check="any")
GetKernelObjectSecurity = function(
    "advapi32", "GetKernelObjectSecurity", BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID
)
SetKernelObjectSecurity = function(
    "advapi32", "SetKernelObjectSecurity", BOOL, HANDLE, DWORD, LPVOID
)
OpenProcessToken = function("advapi32", "OpenProcessToken", BOOL, HANDLE, DWORD, LPVOID)
GetTokenInformation = function(
    "advapi32", "GetTokenInformation", BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID
)


class Capabilities:
    """A SECURITY_CAPABILITIES for a process's attribute list, with the memory it points into."""

    __slots__ = ("_entries", "_kept", "value")

    def __init__(self, package: bytes, capabilities: tuple[bytes, ...]) -> None:
        sids = (package, *capabilities)
        self._kept = [ctypes.create_string_buffer(sid, len(sid)) for sid in sids]
        self._entries = (SID_AND_ATTRIBUTES * max(1, len(capabilities)))()
        for entry, sid in zip(self._entries, self._kept[1:], strict=False):
            entry.Sid = ctypes.addressof(sid)
            entry.Attributes = SE_GROUP_ENABLED
        self.value = SECURITY_CAPABILITIES(
            ctypes.addressof(self._kept[0]),
            ctypes.addressof(self._entries) if capabilities else None,
            len(capabilities),
            0,
        )


def create_profile(
    name: str, title: str, description: str, package: bytes, capabilities: tuple[bytes, ...]
) -> bytes:
    """The package SID of a new profile. OSError ERROR_ALREADY_EXISTS if there is one."""
    wanted = Capabilities(package, capabilities)
    made = PSID()
    CreateAppContainerProfile(
        name,
        title,
        description,
        wanted.value.Capabilities,
        wanted.value.CapabilityCount,
        ctypes.byref(made),
    )
    return _taken(made)


def derive_package_sid(name: str) -> bytes:
    """Windows' own answer, whether or not there is such a profile."""
    found = PSID()
    DeriveAppContainerSidFromAppContainerName(name, ctypes.byref(found))
    return _taken(found)


def derive_capability_sids(name: str) -> tuple[bytes, ...]:
    groups, capabilities = LPVOID(), LPVOID()
    group_count, count = DWORD(), DWORD()
    DeriveCapabilitySidsFromName(
        name,
        ctypes.byref(groups),
        ctypes.byref(group_count),
        ctypes.byref(capabilities),
        ctypes.byref(count),
    )
    _local_sids(groups, group_count.value)
    return _local_sids(capabilities, count.value)


def folder_of(sid: str) -> str:
    """The local folder of an AppContainer profile, named by its SID as text."""
    place = LPVOID()
    GetAppContainerFolderPath(sid, ctypes.byref(place))
    try:
        return ctypes.wstring_at(place.value or 0)
    finally:
        CoTaskMemFree(place)


def security_of(handle: int) -> bytes:
    """The self-relative security descriptor of an open object: its DACL and its control bits."""
    needed = DWORD()
    try:
        GetKernelObjectSecurity(handle, DACL_SECURITY_INFORMATION, None, 0, ctypes.byref(needed))
    except OSError as error:
        if winerror(error) != ERROR_INSUFFICIENT_BUFFER:
            raise
    buffer = ctypes.create_string_buffer(needed.value)
    GetKernelObjectSecurity(
        handle, DACL_SECURITY_INFORMATION, buffer, len(buffer), ctypes.byref(needed)
    )
    return buffer.raw[: needed.value]


def set_security(handle: int, descriptor: bytes) -> None:
    """Of this one object: unlike SetSecurityInfo, this never walks into what lies below it."""
    buffer = ctypes.create_string_buffer(descriptor, len(descriptor))
    SetKernelObjectSecurity(handle, DACL_SECURITY_INFORMATION, buffer)


def open_token(process: int) -> Handle:
    token = HANDLE()
    OpenProcessToken(process, TOKEN_QUERY, ctypes.byref(token))
    return Handle(token.value or 0)


def is_app_container(token: int) -> bool:
    return bool(DWORD.from_buffer_copy(token_information(token, TokenIsAppContainer)).value)


def app_container_sid(token: int) -> bytes:
    """Empty for a token that is of no AppContainer."""
    raw = token_information(token, TokenAppContainerSid)
    where = TOKEN_APPCONTAINER_INFORMATION.from_buffer(raw).TokenAppContainer
    return copied_sid(where) if where else b""


def token_capabilities(token: int) -> tuple[tuple[bytes, int], ...]:
    """(SID, attributes) of each capability."""
    raw = token_information(token, TokenCapabilities)
    count = TOKEN_GROUPS.from_buffer(raw).GroupCount
    entries = (SID_AND_ATTRIBUTES * count).from_buffer(raw, TOKEN_GROUPS.Groups.offset)
    return tuple((copied_sid(entry.Sid), int(entry.Attributes)) for entry in entries)


def token_information(token: int, kind: int) -> bytearray:
    """Kept where it was written: pointers inside lead to the same block."""
    needed = DWORD()
    try:
        GetTokenInformation(token, kind, None, 0, ctypes.byref(needed))
    except OSError:
        # Classes of a fixed size say with another code than the others that there is no room.
        if not needed.value:
            raise
    # Room for every structure that is read from it: an empty list can be shorter than its head.
    raw = bytearray(max(needed.value, ctypes.sizeof(TOKEN_GROUPS)))
    block = (ctypes.c_char * len(raw)).from_buffer(raw)
    GetTokenInformation(token, kind, block, len(raw), ctypes.byref(needed))
    return raw


def copied_sid(sid: int) -> bytes:
    return ctypes.string_at(sid, GetLengthSid(sid))


def _taken(sid: PSID) -> bytes:
    try:
        return copied_sid(sid.value or 0)
    finally:
        FreeSid(sid)


def _local_sids(array: LPVOID, count: int) -> tuple[bytes, ...]:
    """Copies, and gives back what DeriveCapabilitySidsFromName has allocated: each, then all."""
    pointers = (PSID * count).from_address(array.value or 0) if count else ()
    addresses = [int(pointer or 0) for pointer in pointers]
    copies = tuple(copied_sid(address) for address in addresses)
    for address in addresses:
        LocalFree(address)
    LocalFree(array)
    return copies
