"""Compare corral's evaluation of access lists with the system's own AccessCheck."""

from __future__ import annotations

import ctypes
import random
import struct

import pytest

from corral.abi import win32_token
from corral.abi.win32 import BOOL, DWORD, HANDLE, LPVOID, advapi32
from corral.abi.win32_security import TOKEN_QUERY, format_sid, parse_sid, token_groups
from corral.platforms.windows.files import access_list
from corral.platforms.windows.files.access_list import grant_sid

AccessCheck = advapi32(
    "AccessCheck", BOOL, LPVOID, HANDLE, DWORD, LPVOID, LPVOID, LPVOID, LPVOID, LPVOID
)
RIGHTS = [1 << bit for bit in (*range(9), 16, 17, 18, 19, 20)]
FILES = (0x00120089, 0x00120116, 0x001200A0, 0x001F01FF)
SYSTEM, STRANGER = "S-1-5-18", "S-1-5-21-9-9-9-1001"
ENABLED, DENY_ONLY = 0x4, 0x10
CASES = 400


@pytest.fixture(scope="module")
def token():
    access = TOKEN_QUERY | win32_token.TOKEN_DUPLICATE
    with (
        win32_token.own_token(access) as own,
        win32_token.impersonation_token(own.value) as impersonated,
    ):
        yield impersonated.value


@pytest.fixture(scope="module")
def own_sids(token) -> list[str]:
    """Return the user's SID and the SIDs of the enabled groups. Disabled and deny-only groups are left out, because an
    entry that allows access does not apply to them.
    """
    groups = token_groups(token, win32_token.TokenGroups)
    held = [format_sid(sid) for sid, bits in groups if bits & ENABLED and not bits & DENY_ONLY]
    return [format_sid(win32_token.token_user(token)), *held]


def entry(kind: int, flags: int, mask: int, sid: str) -> bytes:
    raw = parse_sid(sid)
    return struct.pack("<BBHI", kind, flags, 8 + len(raw), mask) + raw


def descriptor(entries: list[bytes], owner: str = SYSTEM) -> bytes:
    body, who = b"".join(entries), parse_sid(owner)
    head = struct.pack("<BBHIIII", 1, 0, 0x8004, 20, 20, 0, 20 + len(who))
    return head + who + struct.pack("<BBHHH", 2, 0, 8 + len(body), len(entries), 0) + body


def system_says(raw: bytes, token: int) -> int:
    """Return the rights that the system allows. Ask for each right separately, because MAXIMUM_ALLOWED ignores the
    order of entries.
    """
    return sum(right for right in RIGHTS if is_allowed(raw, token, right))


def is_allowed(raw: bytes, token: int, right: int) -> bool:
    mapping = (DWORD * 4)(*FILES)
    privileges, length = ctypes.create_string_buffer(256), DWORD(256)
    granted, status = DWORD(), BOOL()
    AccessCheck(
        raw, token, right, mapping, privileges, ctypes.byref(length),
        ctypes.byref(granted), ctypes.byref(status),
    )  # fmt: skip
    return bool(status.value)


def test_random_lists_are_read_as_the_system_reads_them(token, own_sids):
    chance = random.Random(20261117)
    sids = [*own_sids, STRANGER, grant_sid("C:\\data", "read"), "S-1-15-2-1"]
    seen = set()
    for _ in range(CASES):
        entries = [
            entry(
                chance.choice((0, 0, 1)),
                chance.choice((0, 0, 0x3, 0x8 | 0x3, 0x10)),
                sum(chance.sample(RIGHTS, chance.randint(1, 8))),
                chance.choice(sids),
            )
            for _ in range(chance.randint(0, 6))
        ]
        raw = descriptor(entries)
        ours = access_list.allowed_rights(raw, own_sids)
        assert ours == system_says(raw, token), [one.hex() for one in entries]
        seen.add(bool(ours))
    assert seen == {True, False}


def test_corrals_entries_give_the_user_no_rights(token, own_sids):
    """Add corral's entry to an access list, and check that the user's rights stay the same. The entry
    is for a capability, and only AppContainers have capabilities.
    """
    sid = grant_sid("C:\\data", "write")
    raw = descriptor([entry(0, 0, 0x120089, own_sids[0])])
    granted = access_list.grant(
        raw, sid, access_list.entries_for(sid, "write", directory=True, root=True)
    )
    whole = descriptor(list(access_list.read(granted).entries))
    assert system_says(whole, token) == system_says(raw, token) == 0x120089
    assert access_list.allowed_rights(whole, [sid]) == access_list.RIGHTS["write"]
