"""Bind calls for SIDs, AppContainer profiles, capabilities, security descriptors and tokens.

SIDs and security descriptors are passed as bytes, because their layout is the same on every machine
([MS-DTYP] 2.4.2, 2.4.6). `platforms.windows.files.access_list` changes these bytes itself, without
calling Windows.
"""

import ctypes
import struct
from collections.abc import Sequence
from functools import partial

from corral.abi.prototypes import Function
from corral.abi.win32 import (
    BOOL,
    DWORD,
    HANDLE,
    HRESULT,
    LPCWSTR,
    LPVOID,
    PSID,
    Handle,
    advapi32,
    function,
    made_handle,
    read_sized,
)

ERROR_NOT_FOUND = 1168
SE_GROUP_ENABLED = 0x4
OWNER_SECURITY_INFORMATION = 0x1
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


userenv = partial(function, "userenv", check="hresult")
CreateAppContainerProfile = userenv(
    "CreateAppContainerProfile", HRESULT, LPCWSTR, LPCWSTR, LPCWSTR, LPVOID, DWORD, LPVOID
)
DeleteAppContainerProfile = userenv("DeleteAppContainerProfile", HRESULT, LPCWSTR)
DeriveAppContainerSidFromAppContainerName = userenv(
    "DeriveAppContainerSidFromAppContainerName", HRESULT, LPCWSTR, LPVOID
)
GetAppContainerFolderPath = userenv("GetAppContainerFolderPath", HRESULT, LPCWSTR, LPVOID)
# FreeSid returns NULL for success. A failure is ignored, because no caller could handle it.
FreeSid = advapi32("FreeSid", LPVOID, PSID, check="any")
GetLengthSid = advapi32("GetLengthSid", DWORD, PSID, check="any")
CoTaskMemFree = function("ole32", "CoTaskMemFree", None, LPVOID, check="any")
GetKernelObjectSecurity = advapi32(
    "GetKernelObjectSecurity", BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID
)
SetKernelObjectSecurity = advapi32("SetKernelObjectSecurity", BOOL, HANDLE, DWORD, LPVOID)
OpenProcessToken = advapi32("OpenProcessToken", BOOL, HANDLE, DWORD, LPVOID)
GetTokenInformation = advapi32("GetTokenInformation", BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID)


def parse_sid(text: str) -> bytes:
    """Encode a SID such as "S-1-5-18" as bytes ([MS-DTYP] 2.4.2.2): revision, number of
    sub-authorities, authority in big-endian order, sub-authorities.
    """
    parts = text.split("-")
    if parts[:1] != ["S"] or len(parts) < 3 or not all(part.isdecimal() for part in parts[1:]):
        raise ValueError(f"{text!r} is not a SID")
    revision, authority, *rest = map(int, parts[1:])
    if revision != 1 or authority >= 1 << 48 or len(rest) > 15 or any(n >= 1 << 32 for n in rest):
        raise ValueError(f"{text!r} is not a SID")
    head = bytes((revision, len(rest))) + authority.to_bytes(6, "big")
    return head + struct.pack(f"<{len(rest)}I", *rest)


def format_sid(raw: bytes) -> str:
    if len(raw) < 8 or raw[0] != 1 or raw[1] > 15 or len(raw) != 8 + 4 * raw[1]:
        raise ValueError(f"{raw.hex()} is not a SID")
    words = struct.unpack(f"<{raw[1]}I", raw[8:])
    return "-".join(("S-1", str(int.from_bytes(raw[2:8], "big")), *map(str, words)))


class SidList:
    """An array of SID_AND_ATTRIBUTES, with the memory that it points to."""

    __slots__ = ("_entries", "_sids")

    def __init__(self, sids: Sequence[bytes], attributes: int = 0) -> None:
        self._sids = [ctypes.create_string_buffer(sid, len(sid)) for sid in sids]
        self._entries = (SID_AND_ATTRIBUTES * max(1, len(sids)))()
        for entry, sid in zip(self._entries, self._sids, strict=False):
            entry.Sid = ctypes.addressof(sid)
            entry.Attributes = attributes

    def __len__(self) -> int:
        return len(self._sids)

    @property
    def address(self) -> int | None:
        """Return the pointer to the array, or NULL for an empty list."""
        return ctypes.addressof(self._entries) if self._sids else None


class Capabilities:
    """A SECURITY_CAPABILITIES with the memory that it points to."""

    __slots__ = ("_capabilities", "_package", "value")

    def __init__(self, package: bytes, capabilities: Sequence[bytes]) -> None:
        self._package = ctypes.create_string_buffer(package, len(package))
        self._capabilities = SidList(capabilities, SE_GROUP_ENABLED)
        self.value = SECURITY_CAPABILITIES(
            ctypes.addressof(self._package), self._capabilities.address, len(capabilities), 0
        )


def create_profile(name: str, title: str, description: str) -> bytes:
    """Create an AppContainer profile and return its package SID. Fail with ERROR_ALREADY_EXISTS if
    the profile exists.

    The profile gets no capabilities, because Windows checks only those in the token. Capabilities
    of the profile would have no effect, except that the firewall service would register them.
    """
    return _made_sid(CreateAppContainerProfile, name, title, description, None, 0)


def derive_package_sid(name: str) -> bytes:
    """Return the SID that Windows derives from a profile's name. The profile need not exist."""
    return _made_sid(DeriveAppContainerSidFromAppContainerName, name)


def profile_folder(sid: str) -> str:
    address = LPVOID()
    GetAppContainerFolderPath(sid, ctypes.byref(address))
    try:
        return ctypes.wstring_at(address.value or 0)
    finally:
        CoTaskMemFree(address)


def read_security(handle: int, *, owner: bool = False) -> bytes:
    """Return the self-relative security descriptor of an open object, with the DACL, the control
    bits and, if `owner` is true, the owner.
    """
    parts = DACL_SECURITY_INFORMATION | (OWNER_SECURITY_INFORMATION if owner else 0)
    return bytes(read_sized(GetKernelObjectSecurity, handle, parts))


def write_security(handle: int, descriptor: bytes) -> None:
    """Set the DACL of this object only. SetSecurityInfo would change the objects below it too."""
    buffer = ctypes.create_string_buffer(descriptor, len(descriptor))
    SetKernelObjectSecurity(handle, DACL_SECURITY_INFORMATION, buffer)


def open_token(process: int) -> Handle:
    return made_handle(OpenProcessToken, process, TOKEN_QUERY)


def is_app_container(token: int) -> bool:
    return bool(DWORD.from_buffer_copy(token_information(token, TokenIsAppContainer)).value)


def app_container_sid(token: int) -> bytes:
    """Return the package SID of an AppContainer's token, or b"" for any other token."""
    raw = token_information(token, TokenAppContainerSid)
    address = TOKEN_APPCONTAINER_INFORMATION.from_buffer(raw).TokenAppContainer
    return copy_sid(address) if address else b""


def token_capabilities(token: int) -> tuple[tuple[bytes, int], ...]:
    return token_groups(token, TokenCapabilities)


def token_groups(token: int, kind: int) -> tuple[tuple[bytes, int], ...]:
    """Return (SID, attributes) for each group in a token. `kind` must be an information class for
    which Windows returns TOKEN_GROUPS.
    """
    raw = token_information(token, kind)
    count = TOKEN_GROUPS.from_buffer(raw).GroupCount
    entries = (SID_AND_ATTRIBUTES * count).from_buffer(raw, TOKEN_GROUPS.Groups.offset)
    return tuple((copy_sid(entry.Sid), int(entry.Attributes)) for entry in entries)


def token_information(token: int, kind: int) -> bytearray:
    return read_sized(GetTokenInformation, token, kind, least=ctypes.sizeof(TOKEN_GROUPS))


def copy_sid(sid: int) -> bytes:
    return ctypes.string_at(sid, GetLengthSid(sid))


def _made_sid(call: Function, *arguments: object) -> bytes:
    """Return the SID that a call allocates and writes through its last argument."""
    sid = PSID()
    call(*arguments, ctypes.byref(sid))
    try:
        return copy_sid(sid.value or 0)
    finally:
        FreeSid(sid)
