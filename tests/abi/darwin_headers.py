"""Check C statements, for example about the size of a structure, against Apple's headers.

The compiler is zig, which comes with these headers. The programs are never run: if a statement is
false, it does not compile, and if a function is missing, the program does not link.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import rigs

MACHINES = ("aarch64", "x86_64")
INCLUDES = (
    "libproc.h",
    "sys/proc_info.h",
    "sys/resource.h",
    "sys/sysctl.h",
    "spawn.h",
    "mach/mach_time.h",
)
# These templates turn the type of an argument or a result into a number that says how large it is,
# whether it is a pointer, and whether it is signed.
PROLOGUE = (
    "#include <stddef.h>\n"
    + "".join(f"#include <{name}>\n" for name in INCLUDES)
    + """
template <class T> struct travels { static constexpr int code = sizeof(T) * 4 + (T(-1) < T(0)); };
template <class T> struct travels<T *> { static constexpr int code = sizeof(T *) * 4 + 2; };
template <> struct travels<void> { static constexpr int code = 0; };
template <class... C> constexpr bool same(C... pairs) {
    int codes[] = {pairs...};
    for (unsigned i = 0; i < sizeof...(C); i += 2) if (codes[i] != codes[i + 1]) return false;
    return true;
}
template <class F> struct signature;
template <class R, class... A> struct signature<R (*)(A...)> {
    template <class... C> static constexpr bool is(int result, C... codes) {
        if (sizeof...(A) != sizeof...(C)) return false;
        int wanted[] = {result, codes...}, found[] = {travels<R>::code, travels<A>::code...};
        for (unsigned i = 0; i <= sizeof...(A); i++) if (wanted[i] != found[i]) return false;
        return true;
    }
};
"""
)


def require() -> None:
    rigs.need("zig")


def compiler(language: str, machine: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ziglang",
        language,
        "-target",
        f"{machine}-macos",
        "-ferror-limit=0",
    ]


def find_untrue(machine: str, statements: dict[str, str]) -> set[str]:
    """Return the names of the statements that are false or use a name that the headers lack."""
    require()
    keys = list(statements)
    lines = [f'static_assert({statements[key]}, "");\n' for key in keys]
    first = PROLOGUE.count("\n") + 1
    with tempfile.TemporaryDirectory() as place:
        source = pathlib.Path(place, "statements.cc")
        source.write_text(PROLOGUE + "".join(lines))
        command = [
            *compiler("c++", machine),
            "-std=c++17",
            "-w",
            "-c",
            str(source),
            "-o",
            f"{place}/made.o",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = {
        int(line) - first for line in re.findall(r"statements\.cc:(\d+):\d+: error", done.stderr)
    }
    assert bool(refused) == bool(done.returncode), done.stderr
    return {keys[number] for number in refused}


def find_unlinked(machine: str, names: set[str]) -> set[str]:
    """Return the functions that libSystem does not export."""
    require()
    ordered = sorted(names)
    text = "".join(f"extern int {name}();\n" for name in ordered)
    text += f"void *table[] = {{{', '.join(f'(void *){name}' for name in ordered)}}};\n"
    text += "int main(void) { return table[0] == 0; }\n"
    with tempfile.TemporaryDirectory() as place:
        source = pathlib.Path(place, "functions.c")
        source.write_text(text)
        # `zig cc` is not used, because it would first spend a minute on building a runtime library.
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "build-exe",
            "-target",
            f"{machine}-macos",
            "-lc",
        ]
        command += ["-fno-compiler-rt", "-fno-ubsan-rt", f"-femit-bin={place}/made"]
        command += ["-cflags", "-w", "-fno-builtin", "-fno-sanitize=undefined", "--", str(source)]
        # Without this variable zig would write files beside the sources.
        environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": place}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    missing = {name for name in ordered if re.search(rf"\b_{name}\b", done.stderr)}
    assert bool(missing) == bool(done.returncode), done.stderr
    return missing
