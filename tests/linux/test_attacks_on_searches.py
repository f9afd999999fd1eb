"""Attack the cache of the directories that corral has searched for secrets. corral must find
secrets that an earlier search could not see.
"""

import os
import sys

import pytest

from file_systems import image, mounted

ENCRYPTED = image("ext4 with fscrypt, on a loop device", "mke2fs -qF -t ext4 -O encrypt", "16M")
SEARCH_LOCKED_AND_OPEN = """
import errno, fcntl, os, struct, sys
from corral.platforms.linux import searched_directories
from corral.platforms.linux.mechanisms import masks
from corral.policy.model import Grant

ADD_KEY, REMOVE_KEY, SET_POLICY = 0xC0506617, 0xC0406618, 0x800C6613
BY_IDENTIFIER, KEY = 2, b"k" * 64

def control(path, number, message):
    fd = os.open(path, os.O_RDONLY)
    try: fcntl.ioctl(fd, number, message := bytearray(message), True)
    finally: os.close(fd)
    return bytes(message)

def add_key():
    message = struct.pack("II32sII32s", BY_IDENTIFIER, 0, b"", len(KEY), 0, b"") + KEY
    return control("/mnt", ADD_KEY, message)[8:24]

def search():
    grant = Grant(path="/mnt", access="write", directory=True, device=0, inode=0, owner=0, group=0)
    return [mask.path for mask in masks.find([grant], os.environ["HOME"]).masks]

searched_directories.SETTLED_NS = -(10**12)
try: key = add_key()
except OSError as error:
    sys.exit(0 if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP) else repr(error))
os.mkdir("/mnt/safe")
control("/mnt/safe", SET_POLICY, struct.pack("BBBB4s16s", 2, 1, 4, 0, b"", key))
for number in range(searched_directories.MIN_DIRECTORIES):
    os.makedirs(f"/mnt/safe/{number}"); os.mkdir(f"/mnt/{number}")
with open("/mnt/safe/1/.env", "w") as file: file.write("secret")
control("/mnt", REMOVE_KEY, struct.pack("II32s6I", BY_IDENTIFIER, 0, key, *[0] * 6))
print("locked", search())
kept = searched_directories.SearchedDirectories("/mnt", keep=True)
print("remembered", kept.find("/mnt/1"), kept.find("/mnt/safe"))
add_key()
print("open", search())
"""


def test_a_secret_is_found_once_the_key_of_its_encrypted_directory_is_added(tmp_path):
    if os.geteuid():
        pytest.skip("only root can mount file systems")
    with mounted(ENCRYPTED) as there:
        (there.work / "search.py").write_text(SEARCH_LOCKED_AND_OPEN)
        said = there.shell(f"HOME={tmp_path} {sys.executable} {there.work}/search.py")
    if not said:
        pytest.skip("this kernel has no fscrypt")
    assert said.splitlines() == [
        "locked []",
        # Sanity check: the cache has an entry for an ordinary directory (`[]`: without
        # subdirectories to search), but none for the locked directory (`None`).
        "remembered [] None",
        "open ['/mnt/safe/1/.env']",
    ]
