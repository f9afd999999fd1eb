"""A process of the user that has nothing to do with the demo server, with a secret in its memory.

It reads the secret from stdin, writes the address of its copy, and waits for the end of its input.
"""

import contextlib
import sys

from corral.abi import linux as abi

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1

if __name__ == "__main__":
    secret = sys.stdin.buffer.readline().strip()
    # Yama lets only parents read a process. Outside the sandbox the act has to succeed.
    with contextlib.suppress(OSError):  # there is no Yama
        abi.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)
    # In CPython the text of a bytes object follows its header, and ends in one NUL.
    sys.stdout.write(f"{id(secret) + bytes.__basicsize__ - 1}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
