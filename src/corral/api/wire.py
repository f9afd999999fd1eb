"""A plan as text and back, to hand it to a supervisor that somebody else forked, and its answers.

Records travel with the name of their class; only classes of corral's own are ever made from it.
"""

from __future__ import annotations

import json
import sys

from corral.errors import CommandError, LaunchError, SandboxError
from corral.record import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Plan
    from corral.supervisor.report import Report

CLASS = "$"
HEADER = 8
"""Bytes of a message's length before it."""


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(HEADER, "little") + message


def encode(item: Plan | Report) -> bytes:
    return json.dumps(_flat(item), separators=(",", ":")).encode("utf-8", "surrogateescape")


def decode_plan(raw: bytes) -> Plan:
    plan: Plan = _built(json.loads(raw.decode("utf-8", "surrogateescape")))  # type: ignore[assignment]
    return plan


def decode_report(raw: bytes) -> Report:
    report: Report = _built(json.loads(raw.decode("utf-8", "surrogateescape")))  # type: ignore[assignment]
    return report


def encode_problem(problem: SandboxError) -> bytes:
    step = getattr(problem, "step", "")
    cause = getattr(problem, "cause", "")
    code = str(problem.exit_code) if isinstance(problem, CommandError) else ""
    words = (type(problem).__name__, problem.message, problem.hint or "", step, cause, code)
    return "\0".join(words).encode(errors="surrogateescape")


def decode_problem(raw: bytes) -> SandboxError:
    """The supervisor's error, as the class that it was there."""
    name, message, hint, step, cause, code = raw.decode(errors="surrogateescape").split("\0")
    if name == "LaunchError":
        return LaunchError(step, cause, hint=hint or None)
    if name == "CommandError":
        return CommandError(message, exit_code=int(code), hint=hint or None)
    return SandboxError(message, hint=hint or None)


def _flat(item: object) -> object:
    if hasattr(item, "__match_args__"):
        cls = type(item)
        flat = {name: _flat(getattr(item, name)) for name in fields(item)}
        return {CLASS: f"{cls.__module__}:{cls.__qualname__}", **flat}
    if isinstance(item, tuple | list | frozenset):
        return [_flat(entry) for entry in item]
    return item


def _built(item: object) -> object:
    if isinstance(item, list):
        return tuple(_built(entry) for entry in item)
    if not isinstance(item, dict):
        return item
    module, _, name = item[CLASS].partition(":")
    if not module.startswith("corral."):
        raise ValueError(f"{module} is no module of corral's")
    __import__(module)
    cls = getattr(sys.modules[module], name)
    if not hasattr(cls, "__match_args__"):
        raise ValueError(f"{name} is no record")
    built: object = cls(**{key: _built(value) for key, value in item.items() if key != CLASS})
    return built
