"""Bind libproc, which lists the host's processes and reports their parents and resource usage."""

from __future__ import annotations

import ctypes

from corral.abi.darwin import function
from corral.abi.prototypes import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROC_RUID_ONLY = 5
PROC_PIDTASKINFO = 4
RUSAGE_INFO_V4 = 4

# From bsd/sys/proc_info_private.h in xnu, the kernel of macOS. With this number proc_pidinfo fills
# a proc_uniqidentifierinfo. A _Static_assert in that header checks the size of this structure.
_PROC_PIDUNIQIDENTIFIERINFO = 17


class proc_taskinfo(ctypes.Structure):
    _fields_ = (
        *fields(
            ctypes.c_uint64,
            "pti_virtual_size pti_resident_size pti_total_user pti_total_system "
            "pti_threads_user pti_threads_system",
        ),
        *fields(
            ctypes.c_int32,
            "pti_policy pti_faults pti_pageins pti_cow_faults pti_messages_sent "
            "pti_messages_received pti_syscalls_mach pti_syscalls_unix pti_csw pti_threadnum "
            "pti_numrunning pti_priority",
        ),
    )


class _proc_uniqidentifierinfo(ctypes.Structure):
    """The unique ids of a process, declared in bsd/sys/proc_info_private.h in xnu.

    An id is not reused before the next boot. `p_puniqueid` is the id of the process that forked
    this one, even if this process has another parent now.
    """

    _fields_ = (
        ("p_uuid", ctypes.c_uint8 * 16),
        *fields(ctypes.c_uint64, "p_uniqueid p_puniqueid"),
        *fields(ctypes.c_int32, "p_idversion p_orig_ppidversion"),
        *fields(ctypes.c_uint64, "p_reserve2 p_reserve3"),
    )


class rusage_info_v4(ctypes.Structure):
    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        *fields(
            ctypes.c_uint64,
            "ri_user_time ri_system_time ri_pkg_idle_wkups ri_interrupt_wkups ri_pageins "
            "ri_wired_size ri_resident_size ri_phys_footprint ri_proc_start_abstime "
            "ri_proc_exit_abstime ri_child_user_time ri_child_system_time "
            "ri_child_pkg_idle_wkups ri_child_interrupt_wkups ri_child_pageins "
            "ri_child_elapsed_abstime ri_diskio_bytesread ri_diskio_byteswritten "
            "ri_cpu_time_qos_default ri_cpu_time_qos_maintenance ri_cpu_time_qos_background "
            "ri_cpu_time_qos_utility ri_cpu_time_qos_legacy ri_cpu_time_qos_user_initiated "
            "ri_cpu_time_qos_user_interactive ri_billed_system_time ri_serviced_system_time "
            "ri_logical_writes ri_lifetime_max_phys_footprint ri_instructions ri_cycles "
            "ri_billed_energy ri_serviced_energy ri_interval_max_phys_footprint "
            "ri_runnable_time",
        ),
    )


class mach_timebase_info(ctypes.Structure):
    _fields_ = (("numer", ctypes.c_uint32), ("denom", ctypes.c_uint32))


_c_int, _c_void_p = ctypes.c_int, ctypes.c_void_p
proc_listallpids = function("proc_listallpids", _c_int, _c_void_p, _c_int, check="positive")
proc_listpgrppids = function(
    "proc_listpgrppids", _c_int, ctypes.c_int, _c_void_p, _c_int, check="any"
)
proc_listpids = function(
    "proc_listpids", _c_int, ctypes.c_uint32, ctypes.c_uint32, _c_void_p, _c_int, check="positive"
)
# This function is defined in libquarantine, and libSystem re-exports it. It returns the pid of the
# process that is responsible for another process. Activity Monitor groups processes by this pid.
responsibility_get_pid_responsible_for_pid = function(
    "responsibility_get_pid_responsible_for_pid", _c_int, _c_int, check="any"
)
proc_pidinfo = function(
    "proc_pidinfo", _c_int, _c_int, _c_int, ctypes.c_uint64, _c_void_p, _c_int, check="positive"
)
proc_pid_rusage = function("proc_pid_rusage", _c_int, _c_int, _c_int, _c_void_p)
mach_timebase = function("mach_timebase_info", _c_int, _c_void_p)


def all_pids() -> list[int]:
    return _read_pids(proc_listallpids, proc_listallpids(None, 0) + 64)


def count_user(uid: int) -> int:
    """Return the number of processes with this real user id."""

    def read(found: ctypes.Array[ctypes.c_int], size: int) -> int:
        return proc_listpids(PROC_RUID_ONLY, uid, found, size) // ctypes.sizeof(ctypes.c_int)

    return len(_read_pids(read, proc_listallpids(None, 0) + 64))


def _read_pids(read: Callable[[ctypes.Array[ctypes.c_int], int], int], size: int) -> list[int]:
    """Return the pids that `read` writes into a buffer, which has room for `size` pids at first.

    If the buffer is full, pids may be missing, so read them again into a buffer twice the size.
    """
    while True:
        found = (ctypes.c_int * size)()
        count = read(found, ctypes.sizeof(found))
        if count < size:
            return list(found[: max(0, count)])
        size *= 2


def responsible_pid(pid: int) -> int:
    """Return the pid of the process that is responsible for the process `pid`.

    If `pid` uses private data, such as the calendar, macOS asks the user for consent in the name of
    the responsible process.
    """
    return responsibility_get_pid_responsible_for_pid(pid)


def group_pids(group: int) -> list[int]:
    return _read_pids(lambda found, size: proc_listpgrppids(group, found, size), 256)


def unique_ids(pid: int) -> tuple[int, int]:
    """Return the unique ids of a process and of the process that forked it. Raise OSError if the
    process has ended.
    """
    info = _proc_uniqidentifierinfo()
    size = ctypes.sizeof(info)
    if proc_pidinfo(pid, _PROC_PIDUNIQIDENTIFIERINFO, 0, ctypes.byref(info), size) != size:
        raise OSError(0, "the kernel's answer has an unexpected size", "proc_pidinfo")
    return int(info.p_uniqueid), int(info.p_puniqueid)


def threads(pid: int) -> int:
    info = proc_taskinfo()
    proc_pidinfo(pid, PROC_PIDTASKINFO, 0, ctypes.byref(info), ctypes.sizeof(info))
    return int(info.pti_threadnum)


def rusage(pid: int) -> tuple[int, int]:
    """Return the CPU time of a process and its reaped children in mach ticks, and the physical
    footprint of the process in bytes.
    """
    info = rusage_info_v4()
    proc_pid_rusage(pid, RUSAGE_INFO_V4, ctypes.byref(info))
    own = info.ri_user_time + info.ri_system_time
    children = info.ri_child_user_time + info.ri_child_system_time
    return int(own + children), int(info.ri_phys_footprint)


def seconds_per_tick() -> float:
    """Return the length of a mach tick in seconds: 1 ns on Intel, 125/3 ns on Apple silicon."""
    info = mach_timebase_info()
    mach_timebase(ctypes.byref(info))
    return float(info.numer) / float(info.denom) / 1e9
