"""Counters of tasks: their sums, and their text."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.counters import Counters, Lag

COUNTERS = st.builds(
    Counters,
    *[st.integers(0, 2**40)] * 4,
    *[st.integers(0, 10**6).map(float)] * 2,  # so that their sums do not depend on the order
)


@given(st.lists(COUNTERS))
def test_sums_do_not_depend_on_the_order_of_tasks(tasks: list[Counters]) -> None:
    total = sum(tasks, Counters())
    assert sum(reversed(tasks), Counters()) == total
    assert total.rows == sum(task.rows for task in tasks)
    assert total.work_seconds == sum(task.work_seconds for task in tasks)


@given(COUNTERS)
def test_counters_travel_in_commit_messages_and_logs(counters: Counters) -> None:
    assert pickle.loads(pickle.dumps(counters)) == counters  # noqa: S301 - our own
    texts = counters.as_texts()
    assert Counters(*(float(text) for text in texts.values())) == counters  # type: ignore[arg-type]


def test_sizes_have_units() -> None:
    sizes = {0: "0 B", 1023: "1,023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 3 << 40: "3,072.0 GiB"}
    for count, text in sizes.items():
        assert f" of {text}, " in str(Counters(entry_bytes=count))


def test_a_lag_that_is_a_bound_is_marked() -> None:
    assert str(Lag("t", 3, "messages")) == "t 3 messages"
    assert str(Lag("t", 3, "entries", is_exact=False)) == "t at least 3 entries"
