"""Restrict a process from its creation on, with PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY.

Each bit of this attribute is one mitigation. Before a run uses a bit, a probe must have started a
process with it. On some older builds of Windows an AppContainer does not start if any bit is set.
Win32k system calls stay allowed, because without them a process that loads USER32 would end. node
loads it, and so does OpenSSL, which Python's asyncio loads.

"No child processes" is not a mitigation bit but a separate attribute (`CHILD_PROCESS_POLICY`).
"""

from __future__ import annotations

from corral.abi import win32_token as abi
from corral.abi.win32_process import Process
from corral.plan import model
from corral.plan.model import Results
from corral.record import record

# The first two bits of the `Flags` that GetProcessMitigationPolicy returns. What they mean depends
# on the kind of policy (see winnt.h).
FIRST, SECOND = 1, 2


@record
class Mitigation:
    """One mitigation. `bit` turns it on in PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY. To check that
    it is on, corral calls GetProcessMitigationPolicy for `policy`. The result must contain `flags`.
    """

    name: str
    bit: int
    policy: int
    flags: int


EXTENSION_POINTS = Mitigation(
    name="no extension points",
    bit=abi.PROCESS_CREATION_MITIGATION_POLICY_EXTENSION_POINT_DISABLE_ALWAYS_ON,
    policy=abi.ProcessExtensionPointDisablePolicy,
    flags=FIRST,
)
NO_REMOTE_IMAGES = Mitigation(
    name="no code from network shares",
    bit=abi.PROCESS_CREATION_MITIGATION_POLICY_IMAGE_LOAD_NO_REMOTE_ALWAYS_ON,
    policy=abi.ProcessImageLoadPolicy,
    flags=FIRST,
)
NO_LOW_LABEL_IMAGES = Mitigation(
    name="no code that a Low process has written",
    bit=abi.PROCESS_CREATION_MITIGATION_POLICY_IMAGE_LOAD_NO_LOW_LABEL_ALWAYS_ON,
    policy=abi.ProcessImageLoadPolicy,
    flags=SECOND,
)
STRICT_HANDLES = Mitigation(
    name="strict handle checks",
    bit=abi.PROCESS_CREATION_MITIGATION_POLICY_STRICT_HANDLE_CHECKS_ALWAYS_ON,
    policy=abi.ProcessStrictHandleCheckPolicy,
    flags=FIRST | SECOND,
)
ORDER = (EXTENSION_POINTS, NO_REMOTE_IMAGES, NO_LOW_LABEL_IMAGES, STRICT_HANDLES)


@record
class Mitigations:
    name = "mitigations"
    bits: int  # the value of PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY
    children: bool  # whether the target may start processes
    stage: model.Stage = "clone"

    def describe(self) -> str:
        words = [item.name for item in ORDER if item.bit & self.bits]
        words += [] if self.children else ["no child processes"]
        return f"mitigations: {', '.join(words) or 'none'}"

    def apply(self, results: Results) -> None:
        results.add(ProcessAttributes(values=self.attributes()))

    def verify(self, results: Results) -> None:
        self.check(results.get(Process).handle.value)

    def check(self, process: int) -> None:
        for name, policy, flags in self.readable():
            found = abi.mitigation_flags(process, policy)
            if found & flags != flags:
                raise OSError(0, f"{name}: reads back as off ({found:#x})")

    def attributes(self) -> tuple[tuple[int, int, int], ...]:
        """Return (attribute, value, size of the value in bytes) for UpdateProcThreadAttribute.
        Leave out the mitigation attribute if it is 0, because some builds of Windows refuse 0.
        """
        found = []
        if self.bits:
            found.append((abi.PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY, self.bits, 8))
        if not self.children:
            value = abi.PROCESS_CREATION_CHILD_PROCESS_RESTRICTED
            found.append((abi.PROC_THREAD_ATTRIBUTE_CHILD_PROCESS_POLICY, value, 4))
        return tuple(found)

    def readable(self) -> tuple[tuple[str, int, int], ...]:
        """Return (name, policy, flags that must be set) for each restriction to read back."""
        found = [(item.name, item.policy, item.flags) for item in ORDER if item.bit & self.bits]
        if not self.children:
            found.append(("no child processes", abi.ProcessChildProcessPolicy, FIRST))
        return tuple(found)


@record
class ProcessAttributes:
    """The attributes of the new process, each as (attribute, value, size of the value in bytes)."""

    values: tuple[tuple[int, int, int], ...]


def plan(bits: int, *, subprocess: bool) -> Mitigations:
    """Return the step. A probe must have shown that a runtime starts with `bits`."""
    known = sum(item.bit for item in ORDER)
    if bits & ~known:
        raise ValueError(f"{bits:#x} has bits of unknown mitigations")
    return Mitigations(bits=bits, children=subprocess)
