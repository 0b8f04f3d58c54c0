"""What every format's write must do: each row is there once the write has succeeded."""

from __future__ import annotations

import pytest

from spark_mq_source.core.errors import OptionError
from tests.formats import Format, numbers, write


def test_every_row_of_every_task_is_there_once(mq: Format):
    topic = mq.feed(3)
    values = numbers(2000)
    write(mq, topic.target, [values[n::4] for n in range(4)])
    assert sorted(mq.consume(topic.topic, 2000)) == sorted(values)


def test_a_task_without_rows_writes_nothing(mq: Format):
    topic = mq.feed(1)
    write(mq, topic.target, [[], numbers(3), []])
    assert sorted(mq.consume(topic.topic, 3)) == numbers(3)


def test_large_and_small_values_come_back_as_they_were(mq: Format):
    topic = mq.feed(1)
    values = [b"x", b"\x00" * 1000, bytes(range(256)) * 2000, b"y" * (900 << 10)]
    write(mq, topic.target, [values])
    assert sorted(mq.consume(topic.topic, len(values))) == sorted(values)


def test_without_a_topic_and_with_a_name_that_does_not_exist_it_is_refused(mq: Format):
    given = {name: value for name, value in mq.feed(1).target.items() if name != "topic"}
    with pytest.raises(OptionError, match="set the option topic, or write a column topic"):
        write(mq, given, [numbers(1)])
    with pytest.raises(OptionError, match="topick: unknown option"):
        write(mq, given | {"topick": "t"}, [numbers(1)])
