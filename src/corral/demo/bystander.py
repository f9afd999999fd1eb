"""A process of the user's that has nothing to do with the demo server, and a secret in its memory.

It reads the secret from stdin, says where it keeps it, and waits for the end of its input.
"""

from __future__ import annotations

import sys

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1


def main() -> None:
    from corral.abi import linux as abi

    secret = sys.stdin.buffer.readline().strip()
    try:
        # Where Yama lets only parents read, this one lets everybody: the control has to succeed.
        abi.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)
    except OSError:
        pass  # no Yama
    # In CPython the text of a bytes object follows its header, and ends in one NUL.
    sys.stdout.write(f"{id(secret) + bytes.__basicsize__ - 1}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
