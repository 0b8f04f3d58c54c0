"""Converts frozen dataclasses to protobuf messages and back, field by field with equal names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from enum import EnumMeta, IntEnum
from types import UnionType
from typing import Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_SIGN: Final = 1 << 63
_UINT64: Final = 1 << 64


class _Field(NamedTuple):
    """How to convert one field of a dataclass to and from protobuf."""

    name: str
    repeated: bool
    unsigned: bool
    text: bool
    part: type | None
    enum: Callable[[int], IntEnum] | None
    left_out: object
    """A value that is not sent, besides None."""


class FieldPairs:
    """The field conversions of dataclasses, computed once per class.

    None is not written, and an absent field gets the dataclass's default. Repeated fields are tuples, nested messages
    are nested dataclasses, and unsigned 64-bit numbers from 2^63 on are negative in the dataclass.

    Args:
        leave_defaults_out: classes whose fields are not written if they have their default.
    """

    def __init__(self, leave_defaults_out: Collection[type] = ()) -> None:
        self._leave_defaults_out = leave_defaults_out
        self._fields: dict[type, tuple[_Field, ...]] = {}

    def fill(self, message: Message, value: object) -> None:
        """Writes a dataclass's fields into a message.

        Raises:
            TypeError: a field is of another type than the message's.
            ValueError: a number does not fit, or a text is not Unicode.
        """
        for item in self._fields_of(type(value), message):
            content = getattr(value, item.name)
            if content is None or content == item.left_out:
                continue
            if item.part is not None:
                for part in content if item.repeated else (content,):
                    target = getattr(message, item.name)
                    target = target.add() if item.repeated else target
                    target.SetInParent()
                    self.fill(target, part)
            elif item.repeated:
                getattr(message, item.name).extend(content)
            else:
                setattr(message, item.name, content + _UINT64 if item.unsigned and content < 0 else content)

    def value_of(self, message: Message, kind: type) -> object:
        """Converts a message to a dataclass of type `kind`.

        Raises:
            ValueError: a text is not UTF-8, a number is not in its enum, or a field without default is missing.
        """
        values: dict[str, object] = {}
        for item in self._fields_of(kind, message):
            if item.repeated:
                parts = getattr(message, item.name)
                if item.text:
                    parts = map(_text_of, parts)
                values[item.name] = tuple(
                    parts if item.part is None else (self.value_of(part, item.part) for part in parts)
                )
                continue
            if not message.HasField(item.name):
                continue
            value = getattr(message, item.name)
            if item.part is not None:
                value = self.value_of(value, item.part)
            elif item.enum is not None:
                value = item.enum(value)
            elif item.unsigned:
                value = value - _UINT64 if value >= _SIGN else value
            elif item.text:
                value = _text_of(value)
            values[item.name] = value
        try:
            return kind(**values)
        except TypeError as error:
            raise ValueError(f"a field is missing: {error}") from error

    def _fields_of(self, kind: type, message: Message) -> tuple[_Field, ...]:
        known = self._fields.get(kind)
        if known is None:
            hints = get_type_hints(kind)
            known = tuple(
                _pair(
                    item.name,
                    hints[item.name],
                    message.DESCRIPTOR.fields_by_name[item.name].type,
                    item.default if kind in self._leave_defaults_out else None,
                )
                for item in fields(kind)
            )
            self._fields[kind] = known
        return known


def _pair(name: str, hint: object, wire_type: int, left_out: object) -> _Field:
    kinds = [hint]
    if get_origin(hint) in {Union, UnionType, tuple}:
        kinds = [kind for kind in get_args(hint) if kind not in {type(None), Ellipsis}]
    (kind,) = kinds
    return _Field(
        name=name,
        repeated=get_origin(hint) is tuple,
        text=wire_type == FieldDescriptor.TYPE_STRING,
        unsigned=wire_type == FieldDescriptor.TYPE_UINT64,
        part=kind if isinstance(kind, type) and wire_type == FieldDescriptor.TYPE_MESSAGE else None,
        enum=kind if isinstance(kind, EnumMeta) else None,
        left_out=left_out,
    )


def _text_of(value: object) -> str:
    # For invalid UTF-8, some Python runtimes of protobuf return the bytes instead of raising an error.
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not UTF-8")  # noqa: TRY004 - the peer's error, caught with the other ValueErrors
    return value
