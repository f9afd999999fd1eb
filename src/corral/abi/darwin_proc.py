"""libproc: which processes there are, who forked them, and what they use."""

import ctypes

from corral.abi.darwin import function

PROC_PIDTASKINFO = 4
RUSAGE_INFO_V4 = 4

# bsd/sys/proc_info_private.h in xnu, where its structure is declared to be API by a
# _Static_assert of its size.
_PROC_PIDUNIQIDENTIFIERINFO = 17


class proc_taskinfo(ctypes.Structure):
    _fields_ = (
        ("pti_virtual_size", ctypes.c_uint64),
        ("pti_resident_size", ctypes.c_uint64),
        ("pti_total_user", ctypes.c_uint64),
        ("pti_total_system", ctypes.c_uint64),
        ("pti_threads_user", ctypes.c_uint64),
        ("pti_threads_system", ctypes.c_uint64),
        ("pti_policy", ctypes.c_int32),
        ("pti_faults", ctypes.c_int32),
        ("pti_pageins", ctypes.c_int32),
        ("pti_cow_faults", ctypes.c_int32),
        ("pti_messages_sent", ctypes.c_int32),
        ("pti_messages_received", ctypes.c_int32),
        ("pti_syscalls_mach", ctypes.c_int32),
        ("pti_syscalls_unix", ctypes.c_int32),
        ("pti_csw", ctypes.c_int32),
        ("pti_threadnum", ctypes.c_int32),
        ("pti_numrunning", ctypes.c_int32),
        ("pti_priority", ctypes.c_int32),
    )


class _proc_uniqidentifierinfo(ctypes.Structure):
    """bsd/sys/proc_info_private.h in xnu. `p_puniqueid` is set by fork and survives reparenting;
    unique ids are never given out twice within a boot.
    """

    _fields_ = (
        ("p_uuid", ctypes.c_uint8 * 16),
        ("p_uniqueid", ctypes.c_uint64),
        ("p_puniqueid", ctypes.c_uint64),
        ("p_idversion", ctypes.c_int32),
        ("p_orig_ppidversion", ctypes.c_int32),
        ("p_reserve2", ctypes.c_uint64),
        ("p_reserve3", ctypes.c_uint64),
    )


class rusage_info_v4(ctypes.Structure):
    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        ("ri_user_time", ctypes.c_uint64),
        ("ri_system_time", ctypes.c_uint64),
        ("ri_pkg_idle_wkups", ctypes.c_uint64),
        ("ri_interrupt_wkups", ctypes.c_uint64),
        ("ri_pageins", ctypes.c_uint64),
        ("ri_wired_size", ctypes.c_uint64),
        ("ri_resident_size", ctypes.c_uint64),
        ("ri_phys_footprint", ctypes.c_uint64),
        ("ri_proc_start_abstime", ctypes.c_uint64),
        ("ri_proc_exit_abstime", ctypes.c_uint64),
        ("ri_child_user_time", ctypes.c_uint64),
        ("ri_child_system_time", ctypes.c_uint64),
        ("ri_child_pkg_idle_wkups", ctypes.c_uint64),
        ("ri_child_interrupt_wkups", ctypes.c_uint64),
        ("ri_child_pageins", ctypes.c_uint64),
        ("ri_child_elapsed_abstime", ctypes.c_uint64),
        ("ri_diskio_bytesread", ctypes.c_uint64),
        ("ri_diskio_byteswritten", ctypes.c_uint64),
        ("ri_cpu_time_qos_default", ctypes.c_uint64),
        ("ri_cpu_time_qos_maintenance", ctypes.c_uint64),
        ("ri_cpu_time_qos_background", ctypes.c_uint64),
        ("ri_cpu_time_qos_utility", ctypes.c_uint64),
        ("ri_cpu_time_qos_legacy", ctypes.c_uint64),
        ("ri_cpu_time_qos_user_initiated", ctypes.c_uint64),
        ("ri_cpu_time_qos_user_interactive", ctypes.c_uint64),
        ("ri_billed_system_time", ctypes.c_uint64),
        ("ri_serviced_system_time", ctypes.c_uint64),
        ("ri_logical_writes", ctypes.c_uint64),
        ("ri_lifetime_max_phys_footprint", ctypes.c_uint64),
        ("ri_instructions", ctypes.c_uint64),
        ("ri_cycles", ctypes.c_uint64),
        ("ri_billed_energy", ctypes.c_uint64),
        ("ri_serviced_energy", ctypes.c_uint64),
        ("ri_interval_max_phys_footprint", ctypes.c_uint64),
        ("ri_runnable_time", ctypes.c_uint64),
    )


class mach_timebase_info(ctypes.Structure):
    _fields_ = (("numer", ctypes.c_uint32), ("denom", ctypes.c_uint32))


_c_int, _c_void_p = ctypes.c_int, ctypes.c_void_p
proc_listallpids = function("proc_listallpids", _c_int, _c_void_p, _c_int, check="positive")
proc_listpgrppids = function(
    "proc_listpgrppids", _c_int, ctypes.c_int, _c_void_p, _c_int, check="any"
)
proc_pidinfo = function(
    "proc_pidinfo", _c_int, _c_int, _c_int, ctypes.c_uint64, _c_void_p, _c_int, check="positive"
)
proc_pid_rusage = function("proc_pid_rusage", _c_int, _c_int, _c_int, _c_void_p)
mach_timebase = function("mach_timebase_info", _c_int, _c_void_p)


def all_pids() -> list[int]:
    """Of every process. The kernel fills what room it is given, so a full answer is no whole one:
    whoever forks fast enough would be missing from it.
    """
    room = proc_listallpids(None, 0) + 64
    while True:
        found = (ctypes.c_int * room)()
        count = proc_listallpids(found, ctypes.sizeof(found))
        if count < room:
            return list(found[:count])
        room *= 2


def group_pids(group: int) -> list[int]:
    found = (ctypes.c_int * 4096)()
    count = proc_listpgrppids(group, found, ctypes.sizeof(found))
    return list(found[: max(0, count)])


def unique_ids(pid: int) -> tuple[int, int]:
    """(its unique id, that of who forked it). A process that has ended raises, reaped or not."""
    info = _proc_uniqidentifierinfo()
    size = ctypes.sizeof(info)
    if proc_pidinfo(pid, _PROC_PIDUNIQIDENTIFIERINFO, 0, ctypes.byref(info), size) != size:
        raise OSError(0, "the kernel's answer has another size", "proc_pidinfo")
    return int(info.p_uniqueid), int(info.p_puniqueid)


def threads(pid: int) -> int:
    info = proc_taskinfo()
    proc_pidinfo(pid, PROC_PIDTASKINFO, 0, ctypes.byref(info), ctypes.sizeof(info))
    return int(info.pti_threadnum)


def rusage(pid: int) -> tuple[int, int]:
    """(CPU time in mach ticks with that of reaped children, physical footprint in bytes)."""
    info = rusage_info_v4()
    proc_pid_rusage(pid, RUSAGE_INFO_V4, ctypes.byref(info))
    own = info.ri_user_time + info.ri_system_time
    children = info.ri_child_user_time + info.ri_child_system_time
    return int(own + children), int(info.ri_phys_footprint)


def seconds_per_tick() -> float:
    """Mach ticks are nanoseconds on Intel and 125/3 ns on Apple silicon."""
    info = mach_timebase_info()
    mach_timebase(ctypes.byref(info))
    return float(info.numer) / float(info.denom) / 1e9
