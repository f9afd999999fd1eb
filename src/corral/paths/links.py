"""Distinguish symlinks and junctions from directories by their lstat result, on every system."""

import os
import stat

JUNCTION = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT
NAME_SURROGATE = 0x20000000
"""A bit in the tag of every reparse point that refers to another path (IsReparseTagNameSurrogate in
winnt.h).
"""


def is_link(found: os.stat_result) -> bool:
    """Return whether lstat found a symlink or a junction. stat.S_ISDIR alone would count a junction
    as a directory.
    """
    return stat.S_ISLNK(found.st_mode) or getattr(found, "st_reparse_tag", 0) == JUNCTION


def is_directory(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and not is_link(found)


def is_name_surrogate(found: os.stat_result) -> bool:
    """Return whether lstat found a symlink, a junction or a mount point.

    All other reparse points are ordinary files and directories that a filter driver handles, such
    as OneDrive's.
    """
    tag = getattr(found, "st_reparse_tag", 0)
    return stat.S_ISLNK(found.st_mode) or bool(tag & NAME_SURROGATE)
