"""Test the bindings with the real libraries: errors, missing functions and handles."""

from __future__ import annotations

import ctypes

import pytest

from corral.abi import win32

CreateEventW = win32.function(
    "kernel32", "CreateEventW", win32.HANDLE, win32.LPVOID, win32.BOOL, win32.BOOL, win32.LPCWSTR
)


def test_an_error_names_the_function_and_has_its_windows_code():
    with pytest.raises(OSError, match="CloseHandle") as caught:
        win32.CloseHandle(0xDEAD0)
    assert win32.winerror(caught.value) == 6


def test_windows_errors_become_pythons_own_exceptions():
    assert isinstance(win32.windows_error(win32.ERROR_ACCESS_DENIED, "X"), PermissionError)
    assert isinstance(win32.windows_error(win32.ERROR_FILE_NOT_FOUND, "X"), FileNotFoundError)


def test_an_ntstatus_becomes_the_windows_error_that_belongs_to_it():
    close = win32.function("ntdll", "NtClose", win32.NTSTATUS, win32.HANDLE, check="ntstatus")
    with pytest.raises(OSError, match="NtClose") as caught:
        close(0xDEAD0)
    assert win32.winerror(caught.value) == 6


def test_a_missing_function_is_named():
    for library, name in (("kernel32", "NoSuchFunction"), ("no-such-library", "Function")):
        missing = win32.function(library, name, win32.BOOL)
        assert not missing.exists()
        with pytest.raises(win32.MissingFunctionError, match=name):
            missing()
    assert win32.CloseHandle.exists()


def test_a_library_beside_the_program_does_not_replace_one_of_windows(tmp_path, monkeypatch):
    (tmp_path / "standin.dll").write_bytes(b"MZ")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(win32.MissingFunctionError) as caught:
        win32.function("standin", "Function", win32.BOOL)()
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(OSError, match=r"\[WinError") as found:
        # Sanity check: the usual search does find the file in the current directory. It only fails
        # to load it, because the file is not a real library.
        ctypes.WinDLL("standin", winmode=0)
    assert not isinstance(found.value, FileNotFoundError)


def test_a_handle_is_closed_once_and_counted():
    before, flags = win32.open_handles(), win32.DWORD()
    GetHandleInformation = win32.function(
        "kernel32", "GetHandleInformation", win32.BOOL, win32.HANDLE, win32.LPVOID
    )
    with win32.Handle(CreateEventW(None, True, False, None)) as event:
        value = event.value
        assert GetHandleInformation(value, ctypes.byref(flags))
        assert win32.open_handles() == before + 1
    assert win32.open_handles() == before
    with pytest.raises(OSError, match="GetHandleInformation"):
        GetHandleInformation(value, ctypes.byref(flags))
    event.close()
    with pytest.raises(ValueError, match="closed"):
        event.value  # noqa: B018


def test_a_detached_handle_stays_open():
    event = win32.Handle(CreateEventW(None, True, False, None))
    value = event.detach()
    event.close()
    assert win32.CloseHandle(value)


@pytest.mark.parametrize("value", [0, win32.INVALID_HANDLE_VALUE])
def test_an_invalid_handle_cannot_be_owned(value):
    with pytest.raises(ValueError, match="not a handle"):
        win32.Handle(value)
