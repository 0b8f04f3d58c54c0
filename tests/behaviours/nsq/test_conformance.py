"""Answers of the embedded broker (and of nsqd, if it is on PATH), compared with recorded answers of nsqd 1.3.0.

The recorded one was built after the release: it supports topologies, unlike the released 1.3.0 and the embedded one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_mq_source.testing import Authorization, AuthorizedClient, AuthRequest
from tests.behaviours.nsq.conftest import RawClient
from tests.fix_brokers import NsqUnderTest, start_nsq
from tests.vectors import FOLDER

Event = Mapping[str, Any]

CASES = [json.loads(line) for line in (FOLDER / "nsq" / "nsqd-1.3.0.jsonl").read_text(encoding="utf-8").splitlines()]
BY_NAME: dict[str, Sequence[Event]] = {case["case"]: case["events"] for case in CASES}
FIRST_OF_AUTH = next(number for number, case in enumerate(CASES) if case["case"].startswith("auth:"))
FLOW = "deliver, touch, fin, req, redeliver, cls"
CLOSED = "in flight when the connection closes: redelivered after msg_timeout, attempts + 1"
SILENCE_S = 0.3  # of nsqd's recorded seconds of silence; answers come at once
NON_FATAL = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")
MESSAGE_HEAD_BYTES = 34
TOPOLOGY = re.compile(rb',"topology_(region|zone)":"[^"]*"')

STOCK = [
    case["case"]
    for case in CASES[:FIRST_OF_AUTH]
    if not case["case"].startswith("…")
    and case["case"] not in ("http", "heartbeats", FLOW, CLOSED, "fin from another connection")
]
WITH_AUTHORIZATION = [case["case"] for case in CASES[FIRST_OF_AUTH:]]


def authorize(request: AuthRequest) -> AuthorizedClient | None:
    if request.secret != "good":
        return None
    return AuthorizedClient("vec", [Authorization("^allowed$", ["c"])], identity_url="http://127.0.0.1/vec")


@pytest.fixture(scope="module")
def stock(nsq_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqUnderTest]:
    with start_nsq(nsq_kind, tmp_path_factory.mktemp("nsq"), max_rdy_count=20_000, mem_queue_size=2_000_000) as broker:
        yield broker


@pytest.fixture(scope="module")
def authorizing(nsq_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqUnderTest]:
    with start_nsq(nsq_kind, tmp_path_factory.mktemp("nsq"), max_msg_size=1024, authorize=authorize) as broker:
        yield broker


@pytest.mark.parametrize("case", STOCK)
def test_answers_as_recorded(stock: NsqUnderTest, case: str):
    Player(stock).play(BY_NAME[case])


def test_a_client_that_answers_no_heartbeat_is_closed_after_two_intervals(stock: NsqUnderTest):
    *before, _second, closed, _same = BY_NAME["heartbeats"]
    player = Player(stock)
    player.play(before, close=False)
    # The second heartbeat and the end come at the same moment: nsqd sends either first.
    with contextlib.suppress(EOFError):
        player.client.frame()
    player.play([closed])


@pytest.mark.parametrize("case", WITH_AUTHORIZATION)
def test_answers_as_recorded_with_authorization(authorizing: NsqUnderTest, case: str):
    Player(authorizing).play(BY_NAME[case])


def test_messages_in_flight_are_redelivered_when_the_connection_closes(stock: NsqUnderTest):
    first = Player(stock)
    first.play(BY_NAME[CLOSED])
    Player(stock).play(BY_NAME["… the second connection"])


def test_only_the_connection_that_received_a_message_may_answer_it(stock: NsqUnderTest):
    stock.create("vec_own", "c")
    stock.publish("vec_own", b"mine")
    owner, other = Player(stock), Player(stock)
    *before, fin, silence = BY_NAME["… and the owner"]
    owner.play(before, close=False)
    other.ids = owner.ids
    other.play(BY_NAME["fin from another connection"])
    owner.play([fin, silence])


def test_http_answers_as_recorded(nsq_kind: str, tmp_path: Path):
    with start_nsq(nsq_kind, tmp_path, max_rdy_count=20_000) as broker:
        Player(broker).play(BY_NAME[FLOW])
        address = broker.http_address
        for event in BY_NAME["http"]:
            if "at" in event:
                address = broker.lookupd_address
                continue
            path, _, query = event["get"].partition("?")
            parameters = dict(part.split("=") for part in query.split("&")) if query else {}
            status, answer = broker.ask("GET", address, path, **parameters)
            assert status == event["status"], event["get"]
            assert without_the_run(answer) == without_the_run(event["body"]), event["get"]


class Player:
    """One connection's recorded events: sends the client's bytes and compares the broker's answers."""

    def __init__(self, broker: NsqUnderTest) -> None:
        self.client = RawClient(broker.tcp_address)
        self.ids: dict[bytes, bytes] = {}

    def play(self, events: Sequence[Event], *, close: bool = True) -> None:
        answer = b""
        try:
            for event in events:
                if "send" in event:
                    self.client.send(self.ours(bytes.fromhex(event["send"])))
                elif "recv" in event:
                    answer = self.compare(bytes.fromhex(event["recv"]))
                elif "inflated" in event:
                    if not self.client.inflates:
                        self.client.inflate()
                    assert self.client.frame() == bytes.fromhex(event["inflated"])
                elif "recv_snappy" in event:
                    expected = bytes.fromhex(event["recv_snappy"])
                    assert self.client.read(len(expected)) == expected
                elif "nothing_within_s" in event:
                    self.client.expect_nothing(min(SILENCE_S, event["nothing_within_s"]))
                elif "closed" in event:
                    self.client.expect_closed()
            if answer[8:10] == b"E_" and not answer[8:].startswith(NON_FATAL):
                self.client.expect_closed()
        finally:
            if close:
                self.client.close()

    def compare(self, expected: bytes) -> bytes:
        got = self.client.frame()
        if expected[4:8] == b"\0\0\0\2":
            # The timestamp and the id are this run's; a message keeps its id.
            assert (got[:8], got[16:18]) == (expected[:8], expected[16:18])
            assert self.ids.setdefault(expected[18:34], got[18:34]) == got[18:34]
            assert re.fullmatch(rb"[0-9a-f]{16}", got[18:34])
            assert got[34:] == expected[34:]
        else:
            known = expected[8:] if TOPOLOGY.search(got) else TOPOLOGY.sub(b"", expected[8:])
            assert got[8:] == self.ours(known)
            assert got[4:8] == expected[4:8]
        return got

    def ours(self, data: bytes) -> bytes:
        for recorded, here in self.ids.items():
            data = data.replace(recorded, here)
        return data


def without_the_run(answer: Any) -> Any:
    """Return an HTTP answer without the fields that differ between runs and machines."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:
            return answer
    if isinstance(answer, list):
        return [without_the_run(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    kept = {}
    for key, value in answer.items():
        if key in ("topology_region", "topology_zone", "global_msg_count"):
            continue
        if key in ("start_time", "remote_address", "hostname", "tcp_port", "http_port"):
            kept[key] = type(value)
        elif key == "memory":
            kept[key] = sorted(value)
        elif key in ("topics", "tombstones") and all(isinstance(item, str | bool) for item in value or []):
            kept[key] = "the topics of the recording"
        else:
            kept[key] = without_the_run(value)
    return kept
