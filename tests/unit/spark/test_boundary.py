"""Errors passed to Spark; tests/spark/test_errors.py checks them as users see them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from spark_mq_source.core.errors import SITE, BrokerError, MQSourceError, OptionError, TopicNotFoundError
from spark_mq_source.spark import boundary
from spark_mq_source.spark.boundary import called_by_spark

HIDE = "SPARK_HIDE_TRACEBACK"


class Reader:
    """An object that Spark calls, whose methods raise `error`."""

    format_name = "list"

    def __init__(self, error: Exception, debug: bool = False) -> None:
        self.error = error
        self.debug = debug

    @called_by_spark
    def partitions(self, start: int, end: int) -> list[int]:
        raise self.error

    @called_by_spark
    def read(self) -> Iterator[int]:
        yield 1
        raise self.error


@pytest.fixture(autouse=True)
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "is_called_by_spark", lambda: True)
    monkeypatch.setenv(HIDE, "")


def raised_by(reader: Reader) -> BaseException:
    with pytest.raises(type(reader.error)) as caught:
        reader.partitions(0, 1)
    return caught.value


def test_an_error_names_the_format_and_links_to_its_explanation() -> None:
    link = f"See {SITE}troubleshooting/#topicnotfounderror"
    assert str(raised_by(Reader(TopicNotFoundError("no topic t")))) == f"list: planning: no topic t. {link}"
    assert str(raised_by(Reader(TopicNotFoundError("list: no topic t")))) == f"list: no topic t. {link}"
    assert str(raised_by(Reader(OptionError("format 'list': x")))).startswith("format 'list': x. See ")


def test_an_error_keeps_its_class_and_its_attributes() -> None:
    error = raised_by(Reader(BrokerError("list: refused", code=7)))
    assert isinstance(error, BrokerError)
    assert error.code == 7


def test_an_error_of_an_iterator_is_shown_in_the_same_way() -> None:
    rows = Reader(OptionError("list: x")).read()
    assert next(rows) == 1
    with pytest.raises(OptionError, match=r"list: x\. See "):
        next(rows)
    assert os.environ[HIDE] == "1"


def test_only_errors_of_this_package_lose_their_traceback() -> None:
    raised_by(Reader(KeyError("a bug")))
    assert os.environ[HIDE] == ""
    raised_by(Reader(MQSourceError("x")))
    assert os.environ[HIDE] == "1"


def test_debug_keeps_the_traceback() -> None:
    assert "See " in str(raised_by(Reader(MQSourceError("x"), debug=True)))
    assert os.environ[HIDE] == ""


def test_outside_of_a_worker_the_traceback_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "is_called_by_spark", lambda: False)
    raised_by(Reader(MQSourceError("x")))
    assert os.environ[HIDE] == ""
