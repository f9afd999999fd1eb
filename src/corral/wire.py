"""A plan as text and back, to hand it to a supervisor that somebody else forked.

Records travel with the name of their class; only classes of corral's own are ever made from it.
"""

from __future__ import annotations

import json
import sys

from corral.record import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan import Plan
    from corral.report import Report

CLASS = "$"


def encode(item: Plan | Report) -> bytes:
    return json.dumps(_flat(item), separators=(",", ":")).encode("utf-8", "surrogateescape")


def decode_plan(raw: bytes) -> Plan:
    plan: Plan = _built(json.loads(raw.decode("utf-8", "surrogateescape")))  # type: ignore[assignment]
    return plan


def decode_report(raw: bytes) -> Report:
    report: Report = _built(json.loads(raw.decode("utf-8", "surrogateescape")))  # type: ignore[assignment]
    return report


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
