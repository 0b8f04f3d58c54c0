"""The bounded inbox between a connection's thread and the reading thread."""

from __future__ import annotations

import threading

import pytest

from spark_mq_source.core.errors import ConnectionLostError
from spark_mq_source.net.inbox import Inbox


@pytest.fixture
def calls():
    return []


@pytest.fixture
def inbox(calls):
    return Inbox[bytes](10, size_of=len, hold=lambda: calls.append("hold"), let_go=lambda: calls.append("let go"))


def take(inbox, max_bytes=1 << 20, timeout_seconds=0.0):
    return inbox.take(max_bytes=max_bytes, timeout_seconds=timeout_seconds)


def test_items_are_taken_in_order_up_to_about_the_requested_bytes(inbox):
    inbox.put([b"aaa", b"", b"bbb"], 6)
    inbox.put([b"c"], 1)
    assert take(inbox, 3) == [b"aaa"]
    assert take(inbox, 1) == [b"", b"bbb"]
    assert take(inbox, 1) == [b"c"]
    assert take(inbox) == []


def test_items_that_fit_exactly_are_taken_with_the_empty_ones_behind(inbox):
    inbox.put([b"aaa", b""], 3)
    assert take(inbox, 3) == [b"aaa", b""]


def test_an_item_that_is_too_large_is_taken_alone(inbox):
    inbox.put([b"x" * 100, b"y"], 101)
    assert take(inbox, 1) == [b"x" * 100]


def test_reading_pauses_above_the_bound_and_resumes_at_half_of_it(inbox, calls):
    inbox.put([b"aaaaa", b"bbbbb"], 10)
    assert calls == []
    inbox.put([b"c", b"d"], 2)
    assert calls == ["hold"]
    inbox.put([b"e"], 1)
    take(inbox, 1)
    assert (calls, inbox.held) == (["hold"], True)
    take(inbox, 1)
    assert (calls, inbox.held) == (["hold", "let go"], False)


def test_reading_resumes_at_exactly_half_of_the_bound(inbox, calls):
    inbox.put([b"a" * 6, b"b" * 5], 11)
    take(inbox, 1)
    assert calls == ["hold", "let go"]


def test_the_bound_is_suspended_while_an_answer_is_awaited(inbox, calls):
    inbox.put([b"x" * 11], 11)
    inbox.lift()
    inbox.lift()
    inbox.put([b"y"], 1)
    inbox.restore()
    inbox.put([b"y"], 1)
    assert calls == ["hold", "let go"]
    inbox.restore()
    inbox.put([b"z"], 1)
    assert calls == ["hold", "let go", "hold"]


def test_the_first_error_is_raised_after_all_received_items(inbox):
    inbox.put([b"a"], 1)
    inbox.fail(ConnectionLostError("first"))
    inbox.fail(ConnectionLostError("second"))
    assert take(inbox) == [b"a"]
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="first"):
            take(inbox)


def test_a_closed_inbox_accepts_no_items(inbox, calls):
    inbox.put([b"a" * 11], 11)
    assert inbox.waiting() == (b"a" * 11,)
    assert inbox.close() == (b"a" * 11,)
    assert not inbox.put([b"b"], 1)
    assert inbox.waiting() == ()
    assert calls == ["hold"]


def test_a_waiting_reader_is_woken(inbox):
    taken = []
    taker = threading.Thread(target=lambda: taken.extend(take(inbox, timeout_seconds=20.0)))
    taker.start()
    inbox.put([b"late"], 4)
    taker.join(20.0)
    assert taken == [b"late"]
