"""Do one kind of work that is typical of servers, and print how many milliseconds it took. The time
does not include the start of this program.
"""

from __future__ import annotations

import os
import sys
import time


def imports() -> None:
    """Import the modules that an asyncio server imports before its first message."""
    import argparse  # noqa: F401
    import asyncio  # noqa: F401
    import email.message  # noqa: F401
    import http.client  # noqa: F401
    import json  # noqa: F401
    import logging.config  # noqa: F401
    import sqlite3  # noqa: F401
    import xml.sax  # noqa: F401


def walk() -> None:
    """Walk a directory tree and stat every file."""
    for directory, _, names in os.walk("/usr/share"):
        for name in names:
            os.lstat(os.path.join(directory, name))


def database() -> None:
    """Insert 2000 notes, each in its own transaction, on a file system in memory."""
    import sqlite3

    path = f"/dev/shm/corral-bench-{os.getpid()}.db"
    try:
        connection = sqlite3.connect(path)
        connection.execute("create table note (id integer primary key, text text)")
        for number in range(2000):
            with connection:
                connection.execute("insert into note (text) values (?)", (f"note {number}",))
        connection.close()
    finally:
        os.unlink(path)


WORKLOADS = {"imports": imports, "walk": walk, "database": database}

if __name__ == "__main__":
    started = time.perf_counter_ns()
    WORKLOADS[sys.argv[1]]()
    print((time.perf_counter_ns() - started) / 1e6)
