"""Check the syscall tables against libseccomp and against the kernel's own headers."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest

import rigs
from corral.abi import linux_syscalls

X86_HEADER = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
GENERIC_HEADER = "/usr/include/asm-generic/unistd.h"


@pytest.fixture(scope="module")
def libseccomp():
    rigs.need("libseccomp")
    library = ctypes.CDLL("libseccomp.so.2")
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    resolve.restype = ctypes.c_int
    library.seccomp_arch_resolve_name.argtypes = (ctypes.c_char_p,)
    library.seccomp_arch_resolve_name.restype = ctypes.c_uint32
    library.seccomp_syscall_resolve_num_arch.argtypes = (ctypes.c_uint32, ctypes.c_int)
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_char_p
    return library


def macros(source, *options):
    done = subprocess.run(
        ["gcc", "-E", "-dM", *options, "-"],
        input=source,
        text=True,
        capture_output=True,
        check=True,
    )
    defined = dict(re.findall(r"#define (__NR\w*) (\w+)", done.stdout))

    def number(name):
        value = defined[name]
        return int(value) if value.isdigit() else number(value)

    return {name[5:]: number(name) for name in defined if name.startswith("__NR_")}


@pytest.fixture(scope="module")
def headers():
    rigs.need("libseccomp")
    x86_64 = macros(f'#include "{X86_HEADER}"\n')
    # The arm64 header (arch/arm64/include/uapi/asm/unistd.h) selects these parts of the generic
    # table.
    wanted = ("RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "SYS_CLONE3", "MEMFD_SECRET")
    asked = "".join(f"#define __ARCH_WANT_{name}\n" for name in wanted)
    aarch64 = macros(f'{asked}#include "{GENERIC_HEADER}"\n')
    for marker in ("syscalls", "arch_specific_syscall"):
        aarch64.pop(marker)
    return {"x86_64": x86_64, "aarch64": aarch64}


@pytest.mark.parametrize("machine", linux_syscalls.TABLES)
def test_no_entry_contradicts_the_headers(machine, headers):
    table, header = linux_syscalls.TABLES[machine], headers[machine]
    assert len(header) > 280
    assert {name: table.get(name) for name in header} == header


@pytest.mark.parametrize("machine", linux_syscalls.TABLES)
def test_only_newer_calls_are_missing_from_the_headers(machine, headers):
    table, header = linux_syscalls.TABLES[machine], headers[machine]
    newest = max(header.values())
    # Linux 6.11 and 6.18 added these calls with numbers that had been unused on x86_64. So their
    # numbers are below the newest number in older headers.
    late = {"uretprobe", "uprobe"}
    for name in table.keys() - header.keys():
        assert table[name] > newest or name in late


@pytest.mark.parametrize("machine", linux_syscalls.TABLES)
def test_no_entry_contradicts_libseccomp(machine, libseccomp):
    arch = libseccomp.seccomp_arch_resolve_name(machine.encode())
    assert arch == linux_syscalls.AUDIT_ARCHES[machine]
    known = 0
    for name, number in linux_syscalls.TABLES[machine].items():
        theirs = libseccomp.seccomp_syscall_resolve_name_arch(arch, name.encode())
        if theirs >= 0:  # libseccomp gives negative numbers to calls that this architecture lacks
            assert (name, number) == (name, theirs)
            known += 1
        else:
            # If libseccomp does not know our name, it must not know another name for our number
            # either.
            assert libseccomp.seccomp_syscall_resolve_num_arch(arch, number) is None, name
    assert known > 290


@pytest.mark.parametrize("machine", linux_syscalls.TABLES)
def test_every_name_of_libseccomp_is_listed(machine, libseccomp):
    numbers = set(linux_syscalls.TABLES[machine].values())
    arch = linux_syscalls.AUDIT_ARCHES[machine]
    for number in range(1024):
        name = libseccomp.seccomp_syscall_resolve_num_arch(arch, number)
        assert name is None or number in numbers, name


@pytest.mark.parametrize("machine", linux_syscalls.TABLES)
def test_numbers_are_unique_and_below_x32(machine):
    numbers = list(linux_syscalls.TABLES[machine].values())
    assert len(set(numbers)) == len(numbers)
    assert 0 <= min(numbers) < max(numbers) < linux_syscalls.X32_SYSCALL_BIT


def test_new_syscalls_have_the_same_number_on_every_machine():
    x86_64 = {name: n for name, n in linux_syscalls.X86_64.items() if n >= 424}
    aarch64 = {name: n for name, n in linux_syscalls.AARCH64.items() if n >= 424}
    assert x86_64 == aarch64
    assert sorted(x86_64.values()) == list(range(424, 470))
