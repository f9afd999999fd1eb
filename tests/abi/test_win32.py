"""Check every type, constant, structure and prototype of `abi/win32*.py` against Windows headers.

The tests find the names themselves. Add a name here only if one of the two sets of headers lacks
it.
"""

from __future__ import annotations

import ctypes
import importlib
import pathlib
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import win32_elsewhere
import win32_headers

import corral.abi
from corral.abi import win32

FOLDER = pathlib.Path(corral.abi.__file__).parent
MODULES = [importlib.import_module(f"corral.abi.{path.stem}") for path in FOLDER.glob("win32*.py")]
AGGREGATES = (ctypes.Structure, ctypes.Union)
# Names that are missing from one set of headers, or from its import libraries. The other set has to
# contain them.
LACKING: dict[str, set[str]] = {
    "mingw": {"SECURITY_CAPABILITY_APP_RID"},
    "zig": set(),
}
# Names that are in no header, and the place where each of them is documented.
DOCUMENTED: dict[str, str] = {}


def public(modules, kind):
    """Return (name, value) for all public names in the modules whose value has the type `kind`."""
    found = {
        (name, value)
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, kind)
    }
    return sorted(found, key=lambda pair: pair[0])


def constants(modules):
    return [(name, value) for name, value in public(modules, int) if not isinstance(value, bool)]


def structures(modules):
    return [(n, c) for n, c in public(modules, type) if issubclass(c, AGGREGATES)]


def aliases(modules):
    return [(n, c) for n, c in public(modules, type) if issubclass(c, ctypes._SimpleCData)]


def prototypes(modules):
    return public(modules, win32.Function)


def fields(structure, prefix="", offset=0):
    """Yield (path, offset, size) for each field that has a name. If the name of a field's
    type begins with an underscore, the headers have no such type, so also yield the fields inside.
    """
    for name, kind in structure._fields_:
        member = getattr(structure, name)
        assert member.size >> 16 == 0, "bit fields have no offset to compare"
        nested = isinstance(kind, type) and issubclass(kind, AGGREGATES)
        nameless = name in getattr(structure, "_anonymous_", ())
        if not nameless:
            yield f"{prefix}{name}", offset + member.offset, member.size
        if nested and kind.__name__.startswith("_"):
            inner = prefix if nameless else f"{prefix}{name}."
            yield from fields(kind, inner, offset + member.offset)


def layouts(modules):
    """Return {label: (C expression, number)} for the size of each type, the sign of each integer
    type, and the offset and size of each field. The number comes from corral's module. In C, with
    the Windows headers, the expression must have the same value.
    """
    found = {}
    for name, kind in aliases(modules):
        found[f"sizeof {name}"] = f"sizeof({name})", ctypes.sizeof(kind)
        if is_integer(kind) and name != "LARGE_INTEGER":  # LARGE_INTEGER is a union in C
            found[f"sign of {name}"] = f"({name})-1 < 0", int(is_signed(kind))
    for name, kind in structures(modules):
        found[f"sizeof {name}"] = f"sizeof({name})", ctypes.sizeof(kind)
        for path, offset, size in fields(kind):
            found[f"offset of {name}.{path}"] = f"offsetof({name}, {path})", offset
            found[f"size of {name}.{path}"] = f"sizeof((({name} *)0)->{path})", size
    return found


def is_integer(kind):
    return kind._type_ in "bBhHiIlLqQ"


def is_signed(kind):
    return kind._type_ in "bhilq"


def passing_of(kind):
    """Return how a value of this type is passed to a function, as the number that the C++ code in
    `win32_headers.SIGNATURES` computes for it.
    """
    if kind is None:
        return 0
    if issubclass(kind, ctypes._SimpleCData) and is_integer(kind):
        return ctypes.sizeof(kind) * 4 + is_signed(kind)
    return ctypes.sizeof(kind) * 4 + 2


class Measured:
    """The values that one set of headers gives to all names in the modules. They are read with two
    compilations, one in C and one in C++.
    """

    def __init__(self, headers, modules):
        headers.require()
        self.headers = headers
        asked = {what: expression for what, (expression, _) in layouts(modules).items()}
        for name in [*(name for name, _ in constants(modules)), *win32_elsewhere.NUMBERS]:
            asked |= {name: name, f"width of {name}": f"sizeof({name})"}
        parts = {
            f"{name} {i}": f"signature<decltype(&{name})>::code({i})"
            for name, function in prototypes(modules)
            for i in range(len(function.arguments) + 2)
        }
        for authority, *identifiers in win32_elsewhere.SIDS.values():
            # The macro of an authority expands to a list of six bytes in braces. This expression reads the last byte.
            parts[authority] = f"SID_IDENTIFIER_AUTHORITY {authority}.Value[5]"
            parts |= {name: name for name in identifiers}
        with ThreadPoolExecutor() as pool:
            numbers = pool.submit(headers.numbers, asked)
            self.signatures = headers.signatures(parts)
            self.numbers = numbers.result()

    def unexplained(self, wrong):
        """Return the mismatches, except for names that this set of headers is known to lack."""
        excused = LACKING[self.headers.rig] | DOCUMENTED.keys()
        return {
            name: found for name, found in wrong.items() if found is not None or name not in excused
        }

    def wrong_constants(self, modules):
        found = {name: self.constant(name, value) for name, value in constants(modules)}
        wrong = {name: found[name] for name, value in constants(modules) if found[name] != value}
        return self.unexplained(wrong)

    def constant(self, name, value):
        """Return the value that the headers give a constant, or None if they do not define it.

        The value is cut to the width of its type, and read as a signed number if the module's value
        is negative.
        """
        if name not in self.numbers:
            return None
        range_ = 1 << 8 * self.numbers[f"width of {name}"]
        number = self.numbers[name] % range_
        return number - range_ if value < 0 else number

    def wrong_layouts(self, modules):
        expected = {what: number for what, (_, number) in layouts(modules).items()}
        found = {what: self.numbers.get(what) for what in expected}
        return self.unexplained(
            {what: found[what] for what, number in expected.items() if found[what] != number}
        )

    def wrong_prototypes(self, modules):
        wrong = {}
        for name, function in prototypes(modules):
            codes = [
                len(function.arguments),
                *map(passing_of, (function.result, *function.arguments)),
            ]
            for i, code in enumerate(codes):
                found = self.signatures.get(f"{name} {i}")
                # The system passes signed and unsigned arguments in the same way. So for arguments,
                # `>> 1` removes the bit that stands for the sign.
                same = found == code or (found is not None and i >= 2 and found >> 1 == code >> 1)
                if not same:
                    wrong[f"argument {i - 1} of {name}" if i >= 2 else name] = found
        return self.unexplained(wrong)

    def not_exported(self, modules):
        lacking = {
            f"export of {name}": None
            for name, function in prototypes(modules)
            if name not in self.headers.exports(function.library)
        }
        return self.unexplained(lacking)


class POINT(ctypes.Structure):
    _fields_ = (("y", win32.LONG), ("x", win32.LONG))


class _Half(ctypes.Structure):
    _fields_ = (("LowPart", win32.LONG), ("HighPart", win32.LONG))


class ULARGE_INTEGER(ctypes.Union):
    _anonymous_ = ("half",)
    _fields_ = (("half", _Half), ("QuadPart", ctypes.c_uint16))


CONTROL = types.ModuleType("control")
"""A fake module to test the checks themselves. Each of its values is wrong or is not in the
headers, so the checks have to find every one of them.
"""
vars(CONTROL).update(
    ERROR_ACCESS_DENIED=6,
    E_FAIL=0x80004006 - (1 << 32),
    WAIT_ABANDONED=0x100000080,
    ERROR_NO_SUCH_NAME=1,
    ATOM=ctypes.c_int16,
    POINT=POINT,
    ULARGE_INTEGER=ULARGE_INTEGER,
    Sleep=win32.function("kernel32", "Sleep", None, ctypes.c_uint64),
    GetTickCount=win32.function("user32", "GetTickCount", win32.DWORD, win32.DWORD),
    SleepEx=win32.function("kernel32", "SleepEx", win32.LONG, win32.DWORD, win32.BOOL),
    SleepNever=win32.function("kernel32", "SleepNever", None),
)


@pytest.fixture(scope="module", params=win32_headers.ALL)
def measured(request):
    return Measured(win32_headers.ALL[request.param], [*MODULES, CONTROL])


def test_every_module_is_checked():
    assert {"corral.abi.win32", "corral.abi.win32_job"} <= {module.__name__ for module in MODULES}
    assert len(constants(MODULES)) > 50
    assert len(structures(MODULES)) > 10
    assert len(prototypes(MODULES)) > 50


def test_constants_agree_with_the_headers(measured):
    assert measured.wrong_constants(MODULES) == {}


def test_types_and_structures_agree_with_the_headers(measured):
    assert measured.wrong_layouts(MODULES) == {}


def test_prototypes_agree_with_the_headers(measured):
    assert measured.wrong_prototypes(MODULES) == {}


def test_the_import_libraries_export_every_function(measured):
    assert measured.not_exported(MODULES) == {}


def test_windows_numbers_in_pure_modules_agree_with_the_headers(measured):
    expected = win32_elsewhere.NUMBERS
    assert {name: measured.constant(name, value) for name, value in expected.items()} == expected


def test_sids_agree_with_the_headers(measured):
    wrong = {}
    for sid, names in win32_elsewhere.SIDS.items():
        for name, part in zip(names, sid.split("-")[2:], strict=False):
            if measured.signatures.get(name) != int(part):
                wrong[name] = measured.signatures.get(name)
    assert measured.unexplained(wrong) == {}


def test_wrong_values_are_found(measured):
    assert measured.wrong_constants([CONTROL]) == {
        "ERROR_ACCESS_DENIED": 5,
        "E_FAIL": 0x80004005 - (1 << 32),
        "WAIT_ABANDONED": 0x80,
        "ERROR_NO_SUCH_NAME": None,
    }
    assert measured.wrong_layouts([CONTROL]) == {
        "sign of ATOM": 0,
        "offset of POINT.x": 0,
        "offset of POINT.y": 4,
        "size of ULARGE_INTEGER.QuadPart": 8,
    }
    assert measured.wrong_prototypes([CONTROL]) == {
        "argument 1 of Sleep": 4 * 4,
        "GetTickCount": 0,
        "argument 1 of GetTickCount": (1 << 64) - 1,
        "SleepEx": 4 * 4,
        "SleepNever": None,
    }
    assert measured.not_exported([CONTROL]) == {
        "export of GetTickCount": None,
        "export of SleepNever": None,
    }


def test_every_name_excepted_from_the_checks_is_in_a_module():
    """Check that every name in LACKING and DOCUMENTED exists in a module, and that no name is in
    LACKING for both sets of headers.
    """
    names = {name for name, _ in constants(MODULES)} | layouts(MODULES).keys()
    functions = {name for name, _ in prototypes(MODULES)}
    names |= functions | {f"export of {name}" for name in functions}
    names |= {part for parts in win32_elsewhere.SIDS.values() for part in parts}
    assert (LACKING["mingw"] | LACKING["zig"] | DOCUMENTED.keys()) - names == set()
    assert LACKING["mingw"] & LACKING["zig"] == set()


def test_names_missing_in_the_headers_have_a_source():
    """Check that DOCUMENTED names a source for each constant and structure with a leading
    underscore, because such names are not compared with the headers. A structure inside a public
    structure needs no source, because its fields are compared.
    """
    reached = {kind for _, outer in structures(MODULES) for kind in nested(outer)}
    private = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if name.startswith("_") and not name.startswith("__") and is_data(value, reached)
    }
    assert private - DOCUMENTED.keys() == set()


def nested(structure):
    for _, kind in structure._fields_:
        if isinstance(kind, type) and issubclass(kind, AGGREGATES):
            yield kind
            yield from nested(kind)


def is_data(value, reached):
    if isinstance(value, type) and issubclass(value, AGGREGATES):
        return value not in reached
    return isinstance(value, int) and not isinstance(value, bool)
