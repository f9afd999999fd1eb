"""Find the real spelling of paths on case-insensitive file systems (vfat, CIFS, casefold ext4)."""

import os


def true_spelling(path: str) -> str:
    """Return a real path with each name spelled as its directory lists it, or "" if a directory
    cannot be listed.
    """
    parent, name = os.path.split(path)
    if not name:
        return path
    above = true_spelling(parent)
    if not above:
        return ""
    path = os.path.join(above, name)
    other = name.swapcase()
    # An ASCII name can be checked without listing the directory. If it has no letters, there is
    # only one spelling. If the name in the other case does not exist, the directory distinguishes
    # case. Names with other characters may have spellings that `swapcase` does not find.
    if name.isascii() and (other == name or not os.path.lexists(os.path.join(above, other))):
        return path
    try:
        names = os.listdir(above)
        if name in names:
            return path
        seen = os.lstat(path)
        found = [one for one in names if os.path.samestat(os.lstat(os.path.join(above, one)), seen)]
    except OSError:
        return ""
    return os.path.join(above, found[0]) if found else ""
