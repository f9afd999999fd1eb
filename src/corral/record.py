"""Provide frozen, keyword-only records that are cheap to import on the start path.

A record behaves like `@dataclass(frozen=True, kw_only=True)`, and type checkers treat it as one.
The `dataclasses` module itself is not used, because it imports `inspect` and `re`, which takes more
than half as long as starting a bare interpreter. Records do not have slots, because a decorator can
add slots only by creating each class again, which took a sixth of the import time of a run.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar, dataclass_transform

    Class = TypeVar("Class")
else:

    def dataclass_transform(**_: object) -> object:
        return lambda decorator: decorator


def _init(self: object, **values: object) -> None:
    cls = type(self)
    given: dict[str, object] = cls.__defaults__ | values  # type: ignore[attr-defined]
    if given.keys() != cls.__fields__:  # type: ignore[attr-defined]
        raise _wrong_fields(cls, fields(cls), given)
    self.__dict__.update(given)


def _wrong_fields(cls: type, names: tuple[str, ...], given: dict[str, object]) -> TypeError:
    missing = [name for name in names if name not in given]
    if missing:
        return TypeError(f"{cls.__name__}() needs the argument {missing[0]!r}")
    unknown = next(name for name in given if name not in names)
    return TypeError(f"{cls.__name__}() has no field {unknown!r}")


def _frozen(self: object, name: str, _value: object = None) -> None:
    raise AttributeError(f"{type(self).__name__}.{name}: records are frozen")


def fields(item: object) -> tuple[str, ...]:
    """Return the field names of a record or of its class, in definition order."""
    names: tuple[str, ...] = item.__match_args__  # type: ignore[attr-defined]
    return names


def astuple(item: object) -> tuple[object, ...]:
    return tuple(map(item.__dict__.__getitem__, fields(item)))


def _eq(self: object, other: object) -> bool:
    return type(self) is type(other) and astuple(self) == astuple(other)


def _hash(self: object) -> int:
    return hash((type(self), astuple(self)))


def _repr(self: object) -> str:
    inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields(self))
    return f"{type(self).__name__}({inner})"


METHODS = {
    "__init__": _init,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
}


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=True)
def record(cls: type[Class]) -> type[Class]:
    own = cls.__dict__
    # Do not use `inspect.get_annotations`, because the import of `inspect` is slow.
    names = tuple(own.get("__annotations__", {}))
    setattr(cls, "__match_args__", names)  # noqa: B010 - type checkers do not know this attribute
    setattr(cls, "__fields__", frozenset(names))  # noqa: B010
    setattr(cls, "__defaults__", {name: own[name] for name in names if name in own})  # noqa: B010
    for name, method in METHODS.items():
        if name != "__repr__" or name not in own:
            setattr(cls, name, method)
    return cls


def replace(item: Class, **changes: object) -> Class:
    return type(item)(**{**item.__dict__, **changes})
