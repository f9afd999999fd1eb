"""Run the loops of `syscall_loops.c` without a C compiler. Times include interpreter overhead."""

from __future__ import annotations

import os
import sys
import threading
import time


def run_loop(kind: str, count: int) -> None:
    zero = os.open("/dev/zero", os.O_RDONLY)
    match kind:
        case "getppid":
            for _ in range(count):
                os.getppid()
        case "read":
            for _ in range(count):
                os.read(zero, 4096)
        case "stat":
            for _ in range(count):
                os.stat("/usr/bin/env")
        case "open":
            for _ in range(count):
                os.close(os.open("/usr/bin/env", os.O_RDONLY))
        case "threads":
            pass_token(count)
        case _:
            raise SystemExit(2)


def pass_token(count: int) -> None:
    here, there = threading.Semaphore(0), threading.Semaphore(0)

    def other() -> None:
        for _ in range(count):
            there.acquire()
            here.release()

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(count):
        there.release()
        here.acquire()
    thread.join()


if __name__ == "__main__":
    started = time.perf_counter_ns()
    run_loop(sys.argv[1], int(sys.argv[2]))
    print((time.perf_counter_ns() - started) / int(sys.argv[2]))
