"""Test which results of Windows functions count as failures in `abi/win32`. These tests run on any
host.
"""

from __future__ import annotations

import sys

import pytest

from corral.abi import win32


@pytest.mark.parametrize(
    ("check", "result", "value", "failed"),
    [
        ("nonzero", win32.BOOL, 0, True),
        ("nonzero", win32.HANDLE, 0x44, False),
        ("valid", win32.HANDLE, win32.INVALID_HANDLE_VALUE, True),
        ("valid", win32.HANDLE, 0, False),
        ("valid", win32.DWORD, 0xFFFFFFFF, True),
        ("valid", win32.DWORD, 0, False),
        ("valid", win32.LONG, -1, True),
        ("hresult", win32.HRESULT, win32.E_NOTIMPL, True),
        ("hresult", win32.HRESULT, 1, False),
        ("ntstatus", win32.NTSTATUS, -1, True),
        ("ntstatus", win32.NTSTATUS, 0x103, False),
        ("any", win32.BOOL, 0, False),
    ],
)
def test_a_failure_is_recognized_for_each_kind_of_function_result(check, result, value, failed):
    assert win32._failed(check, value, result) is failed


def test_an_hresult_that_wraps_a_windows_error_becomes_that_error():
    assert win32.hresult_code(0x80070005 - (1 << 32)) == win32.ERROR_ACCESS_DENIED
    assert win32.hresult_code(win32.E_NOTIMPL) == win32.E_NOTIMPL


@pytest.mark.skipif(sys.platform == "win32", reason="tests other systems than Windows")
def test_a_call_on_another_system_names_the_missing_function():
    assert not win32.CloseHandle.exists()
    with pytest.raises(win32.MissingFunctionError, match=r"only Windows has kernel32.*CloseHandle"):
        win32.CloseHandle(1)


def test_an_error_of_another_system_has_no_windows_code():
    assert win32.winerror(OSError(2, "no such file")) == 0
