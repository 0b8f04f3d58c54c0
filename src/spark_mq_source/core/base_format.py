"""The common part of the formats; `core.ports.Format` documents the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE, Options, Scope

if TYPE_CHECKING:
    import pyarrow as pa


OptionsT = TypeVar("OptionsT", bound=Options)
RangeT = TypeVar("RangeT")
ReportT = TypeVar("ReportT")


class BaseFormat(Generic[OptionsT, RangeT, ReportT]):
    """A format with a dataclass of options, whose rows are visible as soon as their task has succeeded.

    Attributes:
        options_type: the dataclass of its options.
    """

    name: str
    columns: ColumnTable
    options_type: ClassVar[type[Options]]

    def parse_options(self, options: Mapping[str, str]) -> OptionsT:
        """The options of a batch read."""
        return self._parsed(options, READ)

    def parse_stream_options(self, options: Mapping[str, str]) -> OptionsT:
        """The options of a stream."""
        return self._parsed(options, STREAM)

    def parse_look_options(self, options: Mapping[str, str]) -> OptionsT:
        """The options of a batch read that leaves the messages on the broker."""
        return self.parse_options(options)

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> OptionsT:
        """The options of a write; an option or a column must give the topic."""
        parsed = self._parsed(options, WRITE)
        if getattr(parsed, "topic", None) is None and "topic" not in columns:
            raise OptionError(f"format {self.name!r}: set the option topic, or write a column topic")
        return parsed

    def fit(self, options: OptionsT, schema: pa.Schema) -> OptionsT:
        """The options unchanged: nothing depends on the types of the rows."""
        del schema
        return options

    def wants_pushdown(self, options: OptionsT) -> bool:
        """False: the format cannot use predicates."""
        del options
        return False

    def commit(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Does nothing: the rows of a finished task are already visible."""

    def abort(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Does nothing: written rows stay, and a repeated write adds them again."""

    def _parsed(self, options: Mapping[str, str], scope: Scope) -> OptionsT:
        return self.options_type.from_spark(options, scope)  # type: ignore[return-value] # the subclass's type
