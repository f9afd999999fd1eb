"""A directory that is born with its security: at no moment is it open to more."""

from __future__ import annotations

import ctypes

from corral.abi.win32 import BOOL, LPCWSTR, LPVOID, function
from corral.abi.win32_token import SECURITY_ATTRIBUTES, SecurityDescriptor

CreateDirectoryW = function("kernel32", "CreateDirectoryW", BOOL, LPCWSTR, LPVOID)


def create_directory(path: str, security: str) -> None:
    """`security` as SDDL. Fails if something is there."""
    with SecurityDescriptor(security) as descriptor:
        attributes = SECURITY_ATTRIBUTES(ctypes.sizeof(SECURITY_ATTRIBUTES), descriptor.address, 0)
        CreateDirectoryW(path, ctypes.byref(attributes))
