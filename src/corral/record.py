"""Frozen, slotted, keyword-only records, at no cost on the start path.

`dataclasses` imports `inspect` and `re`, which is more than half of what a bare interpreter takes
to start. A record is what `@dataclass(frozen=True, slots=True, kw_only=True)` would make, without
generated code: type checkers see it as exactly that.
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
    names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
    given: dict[str, object] = {**cls.__defaults__, **values}  # type: ignore[attr-defined]
    put = object.__setattr__
    try:
        for name in names:
            put(self, name, given[name])
    except KeyError as error:
        raise TypeError(f"{cls.__name__}() needs the argument {error.args[0]!r}") from None
    if len(given) > len(names):
        unknown = next(name for name in values if name not in names)
        raise TypeError(f"{cls.__name__}() has no field {unknown!r}")


def _frozen(self: object, name: str, _value: object = None) -> None:
    raise AttributeError(f"{type(self).__name__}.{name}: records are frozen")


def fields(item: object) -> tuple[str, ...]:
    """The field names of a record or of its class, in the order written."""
    names: tuple[str, ...] = item.__match_args__  # type: ignore[attr-defined]
    return names


def astuple(item: object) -> tuple[object, ...]:
    return tuple(getattr(item, name) for name in fields(item))


def _eq(self: object, other: object) -> bool:
    return type(self) is type(other) and astuple(self) == astuple(other)


def _hash(self: object) -> int:
    return hash((type(self), astuple(self)))


def _repr(self: object) -> str:
    inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields(self))
    return f"{type(self).__name__}({inner})"


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=True)
def record(cls: type[Class]) -> type[Class]:
    # `inspect.get_annotations` would import `inspect`.
    names = tuple(cls.__dict__.get("__annotations__", {}))  # noqa: RUF063
    body = {k: v for k, v in cls.__dict__.items() if k not in {"__dict__", "__weakref__"}}
    defaults = {name: body.pop(name) for name in names if name in body}
    body.update(
        __slots__=names,
        __match_args__=names,
        __defaults__=defaults,
        __init__=_init,
        __setattr__=_frozen,
        __delattr__=_frozen,
        __eq__=_eq,
        __hash__=_hash,
        __repr__=body.get("__repr__", _repr) if "__repr__" in cls.__dict__ else _repr,
    )
    made: type[Class] = type(cls.__name__, cls.__bases__, body)
    return made


def replace(item: Class, **changes: object) -> Class:
    values = dict(zip(fields(item), astuple(item), strict=True))
    values.update(changes)
    return type(item)(**values)
