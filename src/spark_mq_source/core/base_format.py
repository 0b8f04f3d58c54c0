"""What the formats have in common: see `core.ports.Format`, which says what each method is for."""

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
    """A format whose options are a dataclass, and whose rows are there as soon as their task has succeeded.

    Attributes:
        options_type: the dataclass of its options.
    """

    name: str
    columns: ColumnTable
    options_type: ClassVar[type[Options]]

    def parse_options(self, options: Mapping[str, str]) -> OptionsT:
        """Those of a batch read."""
        return self._parsed(options, READ)

    def parse_stream_options(self, options: Mapping[str, str]) -> OptionsT:
        """Those of a stream."""
        return self._parsed(options, STREAM)

    def parse_look_options(self, options: Mapping[str, str]) -> OptionsT:
        """Those of a batch read, which takes nothing away."""
        return self.parse_options(options)

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> OptionsT:
        """Those of a write; some topic has to be named."""
        parsed = self._parsed(options, WRITE)
        if getattr(parsed, "topic", None) is None and "topic" not in columns:
            raise OptionError(f"format {self.name!r}: set the option topic, or write a column topic")
        return parsed

    def fit(self, options: OptionsT, schema: pa.Schema) -> OptionsT:
        """The same: nothing depends on the types of the rows."""
        del schema
        return options

    def wants_pushdown(self, options: OptionsT) -> bool:
        """Never: no predicate would spare the broker work."""
        del options
        return False

    def commit(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Nothing: what a task has reported is there."""

    def abort(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Nothing: what is there stays, and is there again when it is written again."""

    def _parsed(self, options: Mapping[str, str], scope: Scope) -> OptionsT:
        return self.options_type.from_spark(options, scope)  # type: ignore[return-value] # it is the subclass's
