"""Errors of this package as Spark shows them: one sentence with a link to the documentation, no traceback.

A Python worker passes an error to Spark as text: the tracebacks of the whole chain, then the message. If
`SPARK_HIDE_TRACEBACK` is set in its environment when the error arrives, it passes only the message (pyspark 4.0.0 and
4.3.0, `pyspark.util.handle_worker_exception`). The worker then ends, so later errors are not affected. Errors of other
classes keep their tracebacks, because they are bugs. The option `debug` shows all tracebacks.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.spark.worker import is_called_by_spark

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def called_by_spark(method: MethodT) -> MethodT:
    """Decorate a method that Spark calls, so that errors of the method or of the iterator it returns are one sentence.

    The object's attributes `format_name` (the beginning of the sentence) and `debug` are used.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the method
        with _one_sentence(self):
            result = method(self, *args, **kwargs)
        return _iterate(self, result) if isinstance(result, Iterator) else result

    return cast("MethodT", call)


def _iterate(called: Any, rows: Iterator[Any]) -> Iterator[Any]:  # noqa: ANN401 - the same
    with _one_sentence(called):
        yield from rows


@contextmanager
def _one_sentence(called: Any) -> Iterator[None]:  # noqa: ANN401 - it has `format_name`, `debug`
    try:
        yield
    except MQSourceError as error:
        if not called.debug and is_called_by_spark():
            os.environ[_HIDE_TRACEBACK] = "1"
        begins_well = str(error).startswith((called.format_name, "format "))
        named = error if begins_well else error.within(f"{called.format_name}: planning")
        raise named.with_remedy(f". See {error.help_url}") from error
