"""What a process is told at its birth never to do, by PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY.

Which bits a run gets is decided by starting a process under them: older builds of Windows fail to
start an AppContainer with any, and that cannot be told from a version number. To take win32k away
is not among them: node and python load USER32, and die of it before their first line.

Starting no processes is no mitigation bit but an attribute of its own (`CHILD_PROCESS_POLICY`).
"""

from __future__ import annotations

from corral.abi import win32_token as abi
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place

# Bits of the `Flags` of each policy, from the bit fields of winnt.h.
FIRST, SECOND = 1, 2


@record
class Mitigation:
    """One bit of the attribute, and where GetProcessMitigationPolicy shows it."""

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
    """`bits` is the value of the attribute, `children` whether the target may start processes."""

    bits: int
    children: bool
    place: Place = "birth"

    def describe(self) -> str:
        words = [item.name for item in ORDER if item.bit & self.bits]
        words += [] if self.children else ["no child processes"]
        return f"mitigations: {', '.join(words) or 'none'}"


def plan(bits: int, *, subprocess: bool) -> Mitigations:
    """`bits` as probes have found them to be borne."""
    known = sum(item.bit for item in ORDER)
    if bits & ~known:
        raise ValueError(f"{bits:#x} has bits that are no mitigation of ours")
    return Mitigations(bits=bits, children=subprocess)


def attributes(step: Mitigations) -> tuple[tuple[int, int, int], ...]:
    """(attribute, value, bytes of the value) for UpdateProcThreadAttribute.

    An attribute without a bit is left out: Windows refuses an empty one on some builds.
    """
    found = []
    if step.bits:
        found.append((abi.PROC_THREAD_ATTRIBUTE_MITIGATION_POLICY, step.bits, 8))
    if not step.children:
        value = abi.PROCESS_CREATION_CHILD_PROCESS_RESTRICTED
        found.append((abi.PROC_THREAD_ATTRIBUTE_CHILD_PROCESS_POLICY, value, 4))
    return tuple(found)


def verify(step: Mitigations, process: int) -> None:
    """OSError unless the process says of itself what its creator asked for."""
    for name, policy, flags in wanted(step):
        found = abi.mitigation_flags(process, policy)
        if found & flags != flags:
            raise OSError(0, f"{name}: reads back as off ({found:#x})")


def wanted(step: Mitigations) -> tuple[tuple[str, int, int], ...]:
    """(name, policy, flags that must be set) for each that can be read back."""
    found = [(item.name, item.policy, item.flags) for item in ORDER if item.bit & step.bits]
    if not step.children:
        found.append(("no child processes", abi.ProcessChildProcessPolicy, FIRST))
    return tuple(found)
