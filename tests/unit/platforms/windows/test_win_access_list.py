"""Test adding and removing corral's entries in an access list. All other entries keep their bytes
and their order.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.abi.win32_security import parse_sid
from corral.platforms.windows.files import access_list
from corral.platforms.windows.files.access_list import grant_sid

OURS = grant_sid("C:\\data", "write")
OTHER_RUN = grant_sid("C:\\data", "read")
FOREIGN = ["S-1-5-32-544", "S-1-5-18", "S-1-5-21-1-2-3-1001", "S-1-15-2-1", "S-1-1-0"]


def entry(kind, flags, mask, sid):
    raw = parse_sid(sid)
    return struct.pack("<BBHI", kind, flags, 8 + len(raw), mask) + raw


def descriptor(entries, control=0x8004, revision=2):
    body = b"".join(entries)
    owner = parse_sid("S-1-5-18")
    head = struct.pack("<BBHIIII", 1, 0, control, 20, 0, 0, 20 + len(owner))
    acl = struct.pack("<BBHHH", revision, 0, 8 + len(body), len(entries), 0)
    return head + owner + acl + body


foreign = st.builds(
    entry,
    st.sampled_from([0, 1, 5, 9]),
    st.sampled_from([0, 1, 2, 3, 0x0B, 0x10, 0x13]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([*FOREIGN, OTHER_RUN]),
)
# Entries of type 1 deny access, and entries of type 9 allow it under a condition. corral makes only
# plain entries that allow access (type 0), so it keeps these entries even if they name its own SID.
odd = st.builds(
    entry, st.sampled_from([1, 9]), st.just(0), st.integers(0, 2**32 - 1), st.just(OURS)
)
lists = st.lists(st.one_of(foreign, odd), max_size=12)
controls = st.sampled_from([0x8004, 0x8404, 0x9004, 0x9404])


@given(lists, controls, st.booleans(), st.booleans(), st.sampled_from(["read", "write"]))
def test_an_entry_is_added_and_removed(entries, control, directory, root, access):
    raw = descriptor(entries, control)
    ours = access_list.entries_for(OURS, access, directory=directory, root=root)
    granted = access_list.grant(raw, OURS, ours)
    after = access_list.read(granted)
    assert [one for one in after.entries if not access_list.is_entry_of(one, OURS)] == entries
    assert tuple(one for one in after.entries if access_list.is_entry_of(one, OURS)) == ours
    # These flags say whether the list inherits entries from the parent. They must not change.
    assert after.control & 0x1400 == control & 0x1400
    assert bool(after.control & 0x0100) == bool(control & 0x0400)
    assert access_list.has_entry(granted, OURS)
    assert access_list.grant(granted, OURS, ours) is None
    back = access_list.revoke(granted, OURS)
    assert list(access_list.read(back).entries) == entries
    assert access_list.revoke(back, OURS) is None


@given(lists)
def test_entries_of_another_run_stay(entries):
    theirs = access_list.entries_for(OTHER_RUN, "read", directory=True, root=True)
    raw = access_list.grant(descriptor(entries), OTHER_RUN, theirs)
    mine = access_list.entries_for(OURS, "write", directory=True, root=True)
    both = access_list.grant(raw or descriptor(entries), OURS, mine)
    left = access_list.revoke(both, OURS)
    assert access_list.has_entry(left, OTHER_RUN)
    assert not access_list.has_entry(left, OURS)


def test_corrals_entries_are_placed_before_inherited_ones():
    inherited = entry(0, 0x10, 1, FOREIGN[0])
    deny = entry(1, 0, 1, FOREIGN[1])
    ours = access_list.entries_for(OURS, "read", directory=False, root=False)
    raw = access_list.grant(descriptor([deny, inherited]), OURS, ours)
    assert access_list.read(raw).entries == (deny, *ours, inherited)


def test_inherited_entries_of_corral_are_removed_too():
    """Check that inherited entries are removed too. A file that the target makes inherits corral's
    entry from its directory.
    """
    mark = entry(0, 0x10, access_list.RIGHTS["write"], OURS)
    raw = access_list.revoke(descriptor([mark, entry(0, 0x10, 1, FOREIGN[0])]), OURS)
    assert access_list.read(raw).entries == (entry(0, 0x10, 1, FOREIGN[0]),)


def test_a_grant_never_allows_changing_access_lists_or_deleting_its_root():
    """Check the rights in the entries of a grant. They never contain WRITE_DAC, WRITE_OWNER or
    FILE_DELETE_CHILD. They contain DELETE only for objects inside a directory that is granted for
    writing, and not for this directory itself.
    """
    for access in ("read", "write"):
        for directory in (False, True):
            for root in (False, True):
                made = access_list.entries_for(OURS, access, directory=directory, root=root)
                for one in made:
                    _, flags, _, mask = struct.unpack_from("<BBHI", one)
                    assert not mask & (0x00040000 | 0x00080000 | 0x40)
                    reaches_the_object_itself = not flags & access_list.INHERIT_ONLY
                    if access == "read" or (root and reaches_the_object_itself):
                        assert not mask & access_list.DELETE
                    if access == "read":
                        # No right to write to the object or to add files to it.
                        assert not mask & 0x0116


def test_new_objects_inherit_the_entries():
    for access in ("read", "write"):
        for root in (False, True):
            made = access_list.entries_for(OURS, access, directory=True, root=root)
            below = [mask for mask in made if mask[1] & 3 == 3]
            assert len(below) == 1
            assert bool(struct.unpack_from("<I", below[0], 4)[0] & access_list.DELETE) == (
                access == "write"
            )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(20),
        descriptor([], control=0x8000),
        # An object with a NULL access list is open to all users.
        struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 0),
        descriptor([entry(0, 0, 1, FOREIGN[0])])[:-4],
    ],
    ids=["empty", "zeros", "absent", "null", "cut"],
)
def test_a_descriptor_without_a_usable_list_is_refused(raw):
    with pytest.raises(access_list.Unusable):
        access_list.read(raw)


def test_a_full_access_list_is_refused():
    entries = [entry(0, 0, 1, "S-1-5-21-1-2-3-1001")] * 1700
    ours = access_list.entries_for(OURS, "read", directory=True, root=True)
    room = 0xFFFF - 8 - len(b"".join(entries))
    entries += [entry(0, 0, 1, "S-1-5-32-544")] * (room // 24)
    with pytest.raises(access_list.Unusable, match="full"):
        access_list.grant(descriptor(entries), OURS, ours)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_list_or_refused(raw):
    try:
        found = access_list.read(raw)
    except access_list.Unusable:
        return
    assert access_list.read(access_list.write(found)).entries == found.entries


ANDREW, JANE, GROUP_A, EVERYONE = (
    "S-1-5-21-1-2-3-1001",
    "S-1-5-21-1-2-3-1002",
    "S-1-5-21-1-2-3-513",
    "S-1-1-0",
)
READ, WRITE, EXECUTE = 0x1, 0x2, 0x20
ALL = READ | WRITE | EXECUTE
DOCUMENTED = [
    # Microsoft, "DACLs and ACEs": Andrew is denied everything. Jane gets the rights of everyone,
    # and if she is in group A, also the rights of the group.
    ([(1, 0, ALL, ANDREW), (0, 0, WRITE, GROUP_A), (0, 0, READ | EXECUTE, EVERYONE)],
     {(ANDREW, EVERYONE): 0, (JANE, GROUP_A, EVERYONE): ALL, (JANE, EVERYONE): READ | EXECUTE}),
    # Microsoft, "DACLs and ACEs": an entry that denies a user everything has no effect if an
    # earlier entry allows the user's group everything.
    ([(0, 0, ALL, GROUP_A), (1, 0, ALL, ANDREW)], {(ANDREW, GROUP_A): ALL, (ANDREW,): 0}),
    # [MS-DTYP] 2.5.3.2: a list without entries allows nothing.
    ([], {(ANDREW, EVERYONE): 0}),
    # An inherit-only entry does not apply to the object itself.
    ([(0, 0x0B, ALL, EVERYONE)], {(EVERYONE,): 0}),
    # A generic right stands for the corresponding file rights.
    ([(0, 0, 0x80000000, EVERYONE)], {(EVERYONE,): 0x120089}),
    ([(0, 0, 0x10000000, EVERYONE)], {(EVERYONE,): 0x1F01FF}),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "answers"), DOCUMENTED)
def test_access_lists_are_evaluated_as_windows_documents_it(entries, answers):
    raw = descriptor([entry(*one) for one in entries])
    for sids, rights in answers.items():
        assert access_list.allowed_rights(raw, sids) == rights, sids


def test_inherit_only_entries_count_for_objects_below():
    raw = descriptor([entry(0, 0x0B, 1, "S-1-15-2-1")])
    assert access_list.allowed_rights(raw, access_list.CONTAINERS) == 0
    assert access_list.allowed_rights(raw, access_list.CONTAINERS, below=True) == 1


@given(lists, st.sampled_from(["read", "write"]), st.booleans(), st.booleans())
def test_a_grant_gives_exactly_its_rights_to_its_capability(entries, access, directory, root):
    entries = [one for one in entries if parse_sid(OURS) != one[8:]]
    raw = descriptor(entries)
    ours = access_list.entries_for(OURS, access, directory=directory, root=root)
    granted = access_list.grant(raw, OURS, ours)
    wanted = access_list.RIGHTS[access] | (
        access_list.DELETE if access == "write" and not root else 0
    )
    assert access_list.allowed_rights(granted, [OURS]) == wanted
    others = [*FOREIGN, OTHER_RUN]
    assert access_list.allowed_rights(granted, others) == access_list.allowed_rights(raw, others)
