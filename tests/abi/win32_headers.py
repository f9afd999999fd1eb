"""Read values from the Windows headers with a compiler, and exports from the import libraries.

There are two sets of headers: mingw-w64 as Debian packages it, and the newer mingw-w64 that comes
with zig, which also compiles for ARM. No compiled program has to run, because the compiler writes
the values into a table, which the tests read from the object file.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import rigs

INCLUDES = (
    *("userenv", "sddl", "aclapi", "securitybaseapi", "fltuser", "winternl", "psapi", "tlhelp32"),
    *("winioctl", "jobapi2", "processthreadsapi", "wtsapi32", "iphlpapi", "appmodel"),
)
# winnt.h has only some of the status codes, so ntstatus.h is included too.
PROLOGUE = """\
#define _WIN32_WINNT 0x0A00
#define NTDDI_VERSION 0x0A00000C
#define WIN32_NO_STATUS
#include <winsock2.h>
#include <windows.h>
#undef WIN32_NO_STATUS
#include <ntstatus.h>
#include <stddef.h>
""" + "".join(f"#if __has_include(<{h}.h>)\n#include <{h}.h>\n#endif\n" for h in INCLUDES)
C_TABLE = "const unsigned long long __attribute__((section(TABLE), used)) table[] = {\n"
# Without constexpr, C++ would fill the table only when the program starts, and the object file
# would contain zeros.
CPP_TABLE = "constexpr unsigned long long __attribute__((section(TABLE), used)) table[] = {\n"
# This template turns the type of an argument or a result into a number that says how large it is,
# whether it is a pointer, and whether it is signed.
SIGNATURES = """
template <class T, bool other = __is_class(T) || __is_union(T) || __is_enum(T)>
struct travels { static constexpr int code = sizeof(T) * 4 + (T(-1) < T(0)); };
template <class T> struct travels<T, true> { static constexpr int code = sizeof(T) * 4; };
template <class T> struct travels<T *, false> { static constexpr int code = sizeof(T *) * 4 + 2; };
template <> struct travels<void, false> { static constexpr int code = 0; };
template <class F> struct signature;
template <class R, class... A> struct signature<R (*)(A...)> {
    static constexpr int codes[] = {sizeof...(A), travels<R>::code, travels<A>::code...};
    static constexpr int code(unsigned i) { return i < sizeof...(A) + 2 ? codes[i] : -1; }
};
"""
SECTION = ".corral"
MINGW_PACKAGE = "g++-mingw-w64-x86-64-win32"
IMPORT_LIBRARIES = pathlib.Path("/usr/x86_64-w64-mingw32/lib")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """One set of headers for one processor architecture. `c` and `cpp` are the compilers' commands."""

    rig: str
    c: tuple[str, ...]
    cpp: tuple[str, ...]

    def require(self) -> None:
        rigs.need(self.rig)

    def numbers(self, expressions: dict[str, str]) -> dict[str, int]:
        """Return the value of each C expression. Leave out expressions with names that the headers
        do not define.
        """
        return table((*self.c, "-x", "c"), PROLOGUE + C_TABLE, expressions)

    def signatures(self, expressions: dict[str, str]) -> dict[str, int]:
        """Return the value of each C++ expression. Function types are read in C++, because C cannot
        take them apart.
        """
        compiler = (*self.cpp, "-x", "c++", "-std=gnu++14")
        return table(compiler, PROLOGUE + SIGNATURES + CPP_TABLE, expressions)

    def exports(self, library: str) -> set[str]:
        """Return the names that the import library exports."""
        return mingw_exports(library) if self.rig == "mingw" else zig_exports(library)


def zig(compiler: str, machine: str) -> tuple[str, ...]:
    command = (sys.executable, "-m", "ziglang", compiler, "-target", f"{machine}-windows-gnu")
    return (*command, "-ferror-limit=0")


ALL = {
    "mingw-x86_64": Headers(
        rig="mingw", c=("x86_64-w64-mingw32-gcc",), cpp=("x86_64-w64-mingw32-g++",)
    ),
    "zig-x86_64": Headers(rig="zig", c=zig("cc", "x86_64"), cpp=zig("c++", "x86_64")),
    "zig-aarch64": Headers(rig="zig", c=zig("cc", "aarch64"), cpp=zig("c++", "aarch64")),
}


def table(compiler: tuple[str, ...], opening: str, expressions: dict[str, str]) -> dict[str, int]:
    """Return the values of the expressions, read from a compiled table.

    Expressions that the compiler refuses are left out, and the table is compiled again without them.
    """
    opening = f'#define TABLE "{SECTION}"\n{opening}'
    first = opening.count("\n") + 1
    keys = list(expressions)
    with tempfile.TemporaryDirectory() as place:
        source, made = pathlib.Path(place, "table.c"), pathlib.Path(place, "table.o")
        while True:
            lines = [f"(unsigned long long)({expressions[key]}),\n" for key in keys]
            source.write_text(opening + "".join(lines) + "};\n")
            command = [*compiler, "-w", "-c", str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return dict(zip(keys, read_table(made.read_bytes(), len(keys)), strict=True))
            refused = {
                int(line) - first for line in re.findall(r"table\.c:(\d+):\d+: error", done.stderr)
            }
            kept = [key for i, key in enumerate(keys) if i not in refused]
            assert len(kept) < len(keys), done.stderr
            keys = kept


def read_table(file: bytes, length: int) -> tuple[int, ...]:
    """Return the numbers in the table's section of a COFF object file. Padding may make the section
    longer than the table.
    """
    (sections,) = struct.unpack_from("<H", file, 2)
    for i in range(sections):
        name, size, start = struct.unpack_from("<8s8xII", file, 20 + 40 * i)
        if name.rstrip(b"\0").decode() == SECTION:
            assert size >= 8 * length
            return struct.unpack_from(f"<{length}Q", file, start)
    raise AssertionError(f"no section {SECTION}")


@functools.cache
def mingw_exports(library: str) -> set[str]:
    path = IMPORT_LIBRARIES / f"lib{library}.a"
    if not path.exists():
        return set()
    nm = shutil.which("x86_64-w64-mingw32-nm") or "nm"
    done = subprocess.run([nm, str(path)], capture_output=True, text=True, check=True)
    return set(re.findall(r" T (\w+)", done.stdout))


@functools.cache
def zig_exports(library: str) -> set[str]:
    found = importlib.util.find_spec("ziglang")
    assert found is not None
    assert found.origin is not None
    base = pathlib.Path(found.origin).parent / "lib/libc/mingw"
    files = [path for folder in ("lib-common", "lib64") for path in (base / folder).glob("*.def*")]
    # kernelbase does not have an import library of its own. Its functions are in the libraries of
    # Windows' API sets, whose names begin with `api-ms-win-`.
    named = "api-ms-win-" if library == "kernelbase" else f"{library}."
    texts = [path.read_text() for path in files if path.name.startswith(named)]
    return {name for text in texts for name in re.findall(r"(?m)^(\w+)", text)}
