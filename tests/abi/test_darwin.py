"""Check every constant, structure and prototype of `abi/darwin*.py` against Apple's headers.

All checks are made for x86_64 and for arm64.
The tests find the names themselves. Add a name here only if it is not in Apple's public headers.
"""

from __future__ import annotations

import ctypes
import importlib
import pathlib

import darwin_headers
import pytest

import corral.abi
from corral.abi import darwin

FOLDER = pathlib.Path(corral.abi.__file__).parent
MODULES = [
    importlib.import_module(f"corral.abi.{path.stem}") for path in sorted(FOLDER.glob("darwin*.py"))
]
PRIVATE = {
    "_PROC_PIDUNIQIDENTIFIERINFO": "xnu, bsd/sys/proc_info_private.h: 17",
    "_proc_uniqidentifierinfo": "xnu, bsd/sys/proc_info_private.h, which asserts its size of 56",
    "_POSIX_SPAWN_JETSAM_MEMLIMIT_ACTIVE_FATAL": "xnu, bsd/sys/spawn_internal.h: 0x04",
    "_POSIX_SPAWN_JETSAM_MEMLIMIT_INACTIVE_FATAL": "xnu, bsd/sys/spawn_internal.h: 0x08",
    "_SANDBOX_FILTER_GLOBAL_NAME": "LLVM, sanitizer_mac_spi.cc: the third of the enumeration",
    "_SANDBOX_CHECK_NO_REPORT": "as callers of libsandbox 14.4.1 pass it: 0x40000000",
    "_JETSAM_PRIORITY_ALIAS": "xnu, bsd/sys/kern_memorystatus.h, a comment: -1 is an alias of the default",
}
"""Names that are in no public header, and the places where their values were found."""
UNDECLARED = {
    "posix_spawnattr_setjetsam_ext": "xnu, libsyscall/wrappers/spawn/posix_spawn.c",
    "responsibility_spawnattrs_setdisclaim": "as LLDB's and Chromium's launchers declare it",
    "responsibility_get_pid_responsible_for_pid": "as programs that group processes by it declare it",
    "sandbox_init_with_parameters": "as WebKit's SandboxSPI.h declares it",
    "sandbox_free_error": "as WebKit's SandboxSPI.h declares it",
    "sandbox_check": "as WebKit's SandboxSPI.h declares it",
}
"""Functions that libSystem exports, but that no public header declares."""


def named(kind):
    found = {
        (name, value)
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, kind)
    }
    return sorted(found, key=lambda pair: pair[0])


def constants():
    return [
        (name, value)
        for name, value in named(int)
        if name.lstrip("_").isupper() and name != "TYPE_CHECKING"
    ]


def structures():
    return [
        (name, kind)
        for name, kind in named(type)
        if issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure
    ]


def prototypes():
    return {value.name: value for _, value in named(darwin.Function)}


def layout(name, kind):
    """Return (label, C expression, value) for a structure's size and for each field's offset and size."""
    yield f"{name} size", f"sizeof(struct {name})", ctypes.sizeof(kind)
    for field, _ in kind._fields_:
        place = getattr(kind, field)
        yield f"{name}.{field} offset", f"offsetof(struct {name}, {field})", place.offset
        yield f"{name}.{field} size", f"sizeof(((struct {name} *)0)->{field})", place.size


def passing_of(kind):
    if kind is None:
        return 0
    if kind in {ctypes.c_char_p, ctypes.c_void_p}:
        return ctypes.sizeof(kind) * 4 + 2
    return ctypes.sizeof(kind) * 4 + (kind(-1).value < 0)


def signature(function, *, more=()):
    codes = [passing_of(function.result), *map(passing_of, (*function.arguments, *more))]
    return f"signature<decltype(&{function.name})>::is({', '.join(map(str, codes))})"


def statements():
    found = {name: f"{name} == {value}" for name, value in constants() if not name.startswith("_")}
    for name, kind in structures():
        if not name.startswith("_"):
            found.update({what: f"{text} == {value}" for what, text, value in layout(name, kind)})
    found.update(
        {name: signature(item) for name, item in prototypes().items() if name not in UNDECLARED}
    )
    return found


def test_the_checked_modules_declare_more_than_a_hundred_names():
    names = statements()
    assert {
        "RUSAGE_INFO_V4",
        "rusage_info_v4.ri_phys_footprint offset",
        "proc_pidinfo",
        "posix_spawn",
    } <= set(names)
    assert len(names) > 100


@pytest.mark.parametrize("machine", darwin_headers.MACHINES)
def test_values_agree_with_the_headers(machine):
    assert darwin_headers.find_untrue(machine, statements()) == set()


@pytest.mark.parametrize("machine", darwin_headers.MACHINES)
def test_every_function_exists(machine):
    assert darwin_headers.find_unlinked(machine, set(prototypes())) == set()


@pytest.mark.parametrize("machine", darwin_headers.MACHINES)
def test_a_wrong_constant_size_offset_or_signature_is_found(machine):
    """Check that every kind of wrong statement is found. Sanity check: correct ones are accepted."""
    calls = prototypes()
    wrong = {
        "constant": "RUSAGE_INFO_V4 == 3",
        "unknown constant": "RUSAGE_INFO_V444 == 3",
        "size": "sizeof(struct rusage_info_v4) == 295",
        "offset": "offsetof(struct rusage_info_v4, ri_phys_footprint) == 80",
        "unknown field": "offsetof(struct rusage_info_v4, ri_footprint) == 72",
        "one argument more": signature(calls["proc_pidinfo"], more=(ctypes.c_int,)),
        "a narrower argument": signature(calls["proc_pidinfo"]).replace("32, ", "16, ", 1),
        "a signed argument": signature(calls["proc_pidinfo"]).replace("32, ", "33, ", 1),
    }
    right = {"right": "RUSAGE_INFO_V4 == 4", "right call": signature(calls["proc_pidinfo"])}
    assert darwin_headers.find_untrue(machine, wrong | right) == set(wrong)
    assert darwin_headers.find_unlinked(machine, {"proc_pidinfo", "proc_pidimagined"}) == {
        "proc_pidimagined"
    }


def test_private_names_have_a_source():
    """Check that PRIVATE lists exactly those names of the modules that begin with an underscore,
    and that the modules declare all functions in UNDECLARED. Both tables name a source for each
    name.
    """
    found = {name for name, _ in (*constants(), *structures()) if name.startswith("_")}
    assert found == set(PRIVATE)
    assert set(UNDECLARED) <= set(prototypes())


def test_private_names_are_in_no_public_header():
    """Check that the names in PRIVATE and UNDECLARED really are in no public header, because a name
    that is in a header has to be compared with it.
    """
    public = {
        name: f"{name.lstrip('_')} == {value}"
        for name, value in constants()
        if name.startswith("_")
    }
    public.update(
        {
            name: f"sizeof(struct {name.lstrip('_')}) > 0"
            for name, _ in structures()
            if name.startswith("_")
        }
    )
    public.update({name: f"sizeof(&{name}) > 0" for name in UNDECLARED})
    assert darwin_headers.find_untrue("aarch64", public) == set(public)


def test_the_private_structure_agrees_with_its_source():
    kind = dict(structures())["_proc_uniqidentifierinfo"]
    places = {name: getattr(kind, name).offset for name, _ in kind._fields_}
    assert ctypes.sizeof(kind) == 56
    assert (places["p_uniqueid"], places["p_puniqueid"], places["p_idversion"]) == (16, 24, 32)
