"""Check the bits of each mitigation policy against the Windows headers.

C has no expression for the position of a bit field. So the compiler sets the fields of each policy
to 1, and the test compares the resulting numbers with those that corral uses.
"""

from __future__ import annotations

import pathlib
import subprocess

import pytest
import win32_headers

from corral.abi import win32_token as abi
from corral.platforms.windows.mechanisms import mitigations

FIELDS = {
    mitigations.EXTENSION_POINTS: ("EXTENSION_POINT_DISABLE", ("DisableExtensionPoints",)),
    mitigations.NO_REMOTE_IMAGES: ("IMAGE_LOAD", ("NoRemoteImages",)),
    mitigations.NO_LOW_LABEL_IMAGES: ("IMAGE_LOAD", ("NoLowMandatoryLabelImages",)),
    mitigations.STRICT_HANDLES: (
        "STRICT_HANDLE_CHECK",
        ("RaiseExceptionOnInvalidHandleReference", "HandleExceptionsPermanentlyEnabled"),
    ),
}
CHILDREN = ("CHILD_PROCESS", ("NoChildProcessCreation",))


def source() -> str:
    kinds = [*FIELDS.values(), CHILDREN]
    members = {f"PROCESS_MITIGATION_{kind}_POLICY {kind.lower()};" for kind, _ in kinds}
    rows = [
        f"{{.{kind.lower()} = {{{', '.join(f'.{name} = 1' for name in names)}}}}},"
        for kind, names in kinds
    ]
    return (
        f"{win32_headers.PROLOGUE}union row {{ unsigned long long whole; {' '.join(members)} }};\n"
        f'const union row __attribute__((section("{win32_headers.SECTION}"), used)) table[] = {{\n'
        + "\n".join(rows)
        + "\n};\n"
    )


@pytest.mark.parametrize("name", win32_headers.ALL)
def test_mitigation_flags_agree_with_the_headers(name, tmp_path):
    headers = win32_headers.ALL[name]
    headers.require()
    path, made = pathlib.Path(tmp_path, "table.c"), pathlib.Path(tmp_path, "table.o")
    path.write_text(source())
    subprocess.run([*headers.c, "-w", "-c", str(path), "-o", str(made)], check=True)
    *found, children = win32_headers.read_table(made.read_bytes(), len(FIELDS) + 1)
    assert found == [item.flags for item in FIELDS]
    assert set(FIELDS) == set(mitigations.ORDER)
    step = mitigations.plan(0, subprocess=False)
    assert [(policy, flags) for _, policy, flags in step.readable()] == [
        (abi.ProcessChildProcessPolicy, children)
    ]
