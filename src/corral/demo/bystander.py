"""Keep a secret in the memory of a separate process, so that the demo server can try to read it.

This process reads the secret from stdin, prints the address of its copy, and ends when its input
ends.
"""

import contextlib
import sys

from corral.abi import linux as abi

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1

if __name__ == "__main__":
    secret = sys.stdin.buffer.readline().strip()
    # Let every process of this user read this memory, because the demo server has to succeed
    # outside of the sandbox. By default, the kernel module Yama lets only ancestors of a process
    # read its memory.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without Yama refuses this option
            abi.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)
    # Print the address of the secret. In CPython the content of a bytes object follows its header,
    # and `__basicsize__` counts the header and a final NUL.
    sys.stdout.write(f"{id(secret) + bytes.__basicsize__ - 1}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
