"""Bind the calls that exchange messages with a minifilter driver through its communication port,
and the call that returns the device name of a drive.
"""

import ctypes
from functools import partial

from corral.abi.prototypes import fields
from corral.abi.win32 import (
    BOOL,
    DWORD,
    ERROR_INSUFFICIENT_BUFFER,
    HANDLE,
    HRESULT,
    LPCWSTR,
    LPVOID,
    ULONG_PTR,
    WCHAR,
    WORD,
    function,
    kernel32,
    made_handle,
    winerror,
)
from corral.abi.win32_process import SetEvent, create_event, wait_any

ERROR_IO_PENDING = 997
ERROR_CONNECTION_COUNT_LIMIT = 1238
ERROR_OPERATION_ABORTED = 995
FILE_WRITE_DATA = 0x2
FILE_APPEND_DATA = 0x4
FILE_WRITE_EA = 0x10
FILE_DELETE_CHILD = 0x40
FILE_WRITE_ATTRIBUTES = 0x100
DELETE = 0x10000
WRITE_DAC = 0x40000
WRITE_OWNER = 0x80000
MAXIMUM_ALLOWED = 0x2000000
GENERIC_ALL = 0x10000000
GENERIC_WRITE = 0x40000000


class OVERLAPPED(ctypes.Structure):
    _fields_ = (
        *fields(ULONG_PTR, "Internal InternalHigh"),
        ("Pointer", LPVOID),
        ("hEvent", HANDLE),
    )


fltlib = partial(function, "fltlib", check="hresult")
FilterConnectCommunicationPort = fltlib(
    "FilterConnectCommunicationPort", HRESULT, LPCWSTR, DWORD, LPVOID, WORD, LPVOID, LPVOID
)
FilterSendMessage = fltlib(
    "FilterSendMessage", HRESULT, HANDLE, LPVOID, DWORD, LPVOID, DWORD, LPVOID
)
FilterGetMessage = fltlib("FilterGetMessage", HRESULT, HANDLE, LPVOID, DWORD, LPVOID)
FilterReplyMessage = fltlib("FilterReplyMessage", HRESULT, HANDLE, LPVOID, DWORD)
GetOverlappedResult = kernel32("GetOverlappedResult", BOOL, HANDLE, LPVOID, LPVOID, BOOL)
CancelIoEx = kernel32("CancelIoEx", BOOL, HANDLE, LPVOID)
QueryDosDeviceW = kernel32("QueryDosDeviceW", DWORD, LPCWSTR, LPVOID, DWORD)


class Port:
    """A connection to a driver. `receive` waits for a message until another thread calls `stop`."""

    def __init__(self, name: str, context: bytes) -> None:
        self._port = made_handle(
            FilterConnectCommunicationPort, name, 0, context, len(context), None
        )
        self._arrived = create_event()
        self._closing = create_event()

    def send(self, message: bytes) -> None:
        returned = ctypes.byref(DWORD())
        FilterSendMessage(self._port.value, message, len(message), None, 0, returned)

    def receive(self, max_size: int) -> bytes:
        """Return the next message with its FILTER_MESSAGE_HEADER. Raise EOFError after `stop`."""
        buffer = ctypes.create_string_buffer(max_size)
        overlapped = OVERLAPPED(hEvent=self._arrived.value)
        try:
            FilterGetMessage(self._port.value, buffer, max_size, ctypes.byref(overlapped))
        except OSError as error:
            if winerror(error) != ERROR_IO_PENDING:
                raise
        if wait_any((self._closing.value, self._arrived.value), None) == 0:
            self._cancel(overlapped)
            raise EOFError
        size = DWORD()
        GetOverlappedResult(self._port.value, ctypes.byref(overlapped), ctypes.byref(size), 1)
        return buffer.raw[: size.value]

    def reply(self, data: bytes) -> None:
        FilterReplyMessage(self._port.value, data, len(data))

    def stop(self) -> None:
        """Make `receive` raise EOFError. Messages can still be sent."""
        SetEvent(self._closing.value)

    def close(self) -> None:
        """Close the connection. Call this only when no thread is in `receive`."""
        for handle in (self._port, self._arrived, self._closing):
            handle.close()

    def _cancel(self, overlapped: OVERLAPPED) -> None:
        """Cancel a read, so that nothing is written into its buffer after the buffer is freed."""
        size = DWORD()
        try:
            CancelIoEx(self._port.value, ctypes.byref(overlapped))
        except OSError:
            return  # the read had ended already
        try:
            GetOverlappedResult(self._port.value, ctypes.byref(overlapped), ctypes.byref(size), 1)
        except OSError as error:
            if winerror(error) != ERROR_OPERATION_ABORTED:
                raise


def query_dos_device(drive: str) -> str:
    """Return the name of the device behind a drive such as "C:"."""
    size = 260
    while True:
        buffer = (WCHAR * size)()
        try:
            length = QueryDosDeviceW(drive, buffer, size)
        except OSError as error:
            if winerror(error) != ERROR_INSUFFICIENT_BUFFER or size > 1 << 16:
                raise
            size *= 4
        else:
            text = bytes(buffer)[: 2 * length].decode("utf-16-le", "surrogatepass")
            return text.partition("\0")[0]
