"""List the names of Seatbelt's operations in two releases of macOS. The names come from the
releases' files and have not been tried on a Mac.

`CATALINA` is the table of macOS 10.15, and `SONOMA` is the table of libsandbox in 14.4.1.
`ALLOWED_BY_VERSION_1` lists the operations that the prelude of `(version 1)` in 14.4.1 allows
despite `(deny default)`.
"""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BOTH = words("""
default appleevent-send authorization-right-obtain boot-arg-set device* device-camera device-microphone
darwin-notification-post distributed-notification-post dynamic-code-generation file* file-chroot file-clone file-ioctl
file-issue-extension file-link file-map-executable file-mknod file-mount file-mount-update file-read* file-read-data
file-read-metadata file-read-xattr file-revoke file-search file-test-existence file-unmount file-write* file-write-acl
file-write-create file-write-data file-write-finderinfo file-write-flags file-write-mode file-write-owner
file-write-setugid file-write-times file-write-unlink file-write-xattr fs-rename fs-snapshot* fs-snapshot-create
fs-snapshot-delete fs-snapshot-revert generic-issue-extension qtn-user hid-control iokit* iokit-issue-extension
iokit-set-properties iokit-get-properties ipc* ipc-posix* ipc-posix-issue-extension ipc-posix-sem*
ipc-posix-sem-create ipc-posix-sem-open ipc-posix-sem-post ipc-posix-sem-unlink ipc-posix-sem-wait ipc-posix-shm*
ipc-posix-shm-read-data ipc-posix-shm-write* ipc-posix-shm-write-create ipc-posix-shm-write-data
ipc-posix-shm-write-unlink ipc-sysv* ipc-sysv-msg ipc-sysv-sem ipc-sysv-shm job-creation lsopen mach*
mach-cross-domain-lookup mach-host* mach-host-exception-port-set mach-host-special-port-set mach-issue-extension
mach-lookup mach-priv* mach-priv-host-port mach-priv-task-port mach-register mach-task-name network* network-inbound
network-bind network-outbound nvram* nvram-delete nvram-get nvram-set opendirectory-user-modify process*
process-exec* process-exec-interpreter process-fork process-info* process-info-codesignature
process-info-dirtycontrol process-info-listpids process-info-rusage process-info-pidinfo process-info-pidfdinfo
process-info-pidfileportinfo process-info-setcontrol pseudo-tty signal socket-ioctl sysctl* sysctl-read sysctl-write
system* system-acct system-audit system-automount system-debug system-fsctl system-info system-kext*
system-kext-load system-kext-unload system-kext-query system-mac-label system-nfssvc system-package-check
system-privilege system-reboot system-sched system-set-time system-socket system-suspend-resume system-swap
user-preference* user-preference-read managed-preference-read user-preference-write syscall-unix storage-class-map
""")
CATALINA = frozenset(BOTH).union(
    words("""
iokit-open load-unsigned-code process-codesigning-status* process-codesigning-status-set
process-codesigning-status-get
""")
)
SONOMA = frozenset(BOTH).union(
    words("""
file-lock fs-quota* fs-quota-get fs-quota-on fs-quota-off fs-quota-set* fs-quota-set-limits fs-quota-set-usage
fs-quota-stat fs-quota-sync fs-snapshot-mount iokit-open* iokit-open-user-client iokit-open-service mach-bootstrap
mach-derive-port mach-kernel-endpoint mach-task* mach-task-inspect mach-task-read mach-task-special-port*
mach-task-special-port-get mach-task-special-port-set necp-client-open process-codesigning process-info-ledger
process-legacy-codesigning* process-legacy-codesigning-blob-get process-legacy-codesigning-cdhash-get
process-legacy-codesigning-entitlements-blob-get process-legacy-codesigning-entitlements-der-blob-get
process-legacy-codesigning-identity-get process-legacy-codesigning-status* process-legacy-codesigning-status-get
process-legacy-codesigning-status-set process-legacy-codesigning-teamid-get
process-legacy-codesigning-text-offset-get socket-option* socket-option-get socket-option-set syscall*
syscall-mach syscall-mig system-fcntl system-kas-info system-mac* system-mac-syscall system-memorystatus-control
system-necp-client-action process-exec-update-label default-message-filter iokit-async-external-method
iokit-external-method iokit-external-trap mach-message-send xpc-message-send
""")
)
ALIASES = {"process-exec": "process-exec*", "ipc-posix-sem": "ipc-posix-sem*"}

ALLOWED_BY_VERSION_1 = words("""
darwin-notification-post dynamic-code-generation file-clone file-link file-lock file-map-executable
file-test-existence fs-quota* fs-snapshot-mount iokit-get-properties iokit-open-service mach-bootstrap
mach-cross-domain-lookup mach-task-special-port* necp-client-open nvram* process-info* process-info-codesignature
socket-ioctl socket-option-get socket-option-set syscall-unix syscall-mach syscall-mig system-fcntl
system-mac-syscall system-memorystatus-control system-necp-client-action
""")
ALLOWED_FOR_SELF = (
    "signal",
    "mach-task-name",
    "mach-task-inspect",
    "mach-task-read",
    "mach-task-special-port-get",
)
"""Rules for the process itself that the prelude adds after the last rule of a profile."""
LEFT_OPEN = {
    "dynamic-code-generation": "V8 compiles with it on Apple silicon",
    "file-lock": "locks a file that is open already: sqlite and flock",
    "mach-bootstrap": "every lookup goes through it, and mach-lookup decides which service is found",
    "mach-task-special-port*": "needs the port of a task, and the target gets only its own tasks' ports",
    "socket-ioctl": "non-blocking mode is set by it; it sends nothing",
    "socket-option-get": "every client sets options of sockets that system-socket let it make",
    "socket-option-set": "every client sets options of sockets that system-socket let it make",
    "syscall-unix": "system calls are not filtered by number: SECURITY.md says so",
    "syscall-mach": "system calls are not filtered by number: SECURITY.md says so",
    "syscall-mig": "system calls are not filtered by number: SECURITY.md says so",
    "system-fcntl": "commands on descriptors that are open already",
    "system-mac-syscall": "the loader and libSystem call it in every process",
}  # fmt: skip
"""The operations that corral's profile leaves allowed, and the reason for each."""

TAKES = {
    "file": {"path", "vnode-type"},
    "process-exec": {"path"},
    "process-info": {"target"},
    "signal": {"target"},
    "mach-task": {"target"},
    "mach-lookup": {"mach"},
    "sysctl": {"sysctl"},
    "network": {"socket", "path"},
    "system-socket": {"socket"},
}
"""The kinds of filters that an operation takes, by the prefix of the operation's name. Only the
kinds that corral uses are listed.
"""
KINDS = {
    **dict.fromkeys(("literal", "subpath", "regex", "path-ancestors"), "path"),
    "vnode-type": "vnode-type",
    "target": "target",
    "global-name": "mach",
    **dict.fromkeys(("sysctl-name", "sysctl-name-prefix"), "sysctl"),
    **dict.fromkeys(("local", "remote", "socket-domain"), "socket"),
}
