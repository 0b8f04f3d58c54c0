"""Tables fit the width, without truncated cells."""

from __future__ import annotations

import io
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark_mq_source.cli.tables import show, table_of

TOPIC = "persistent://a-tenant-of-the-cluster/and-its-namespace/flights-of-a-year-with-all-of-their-delays"
LAG = [
    {
        "topic": TOPIC,
        "partition": partition,
        "read": {"ledger": 123456, "entry": 12345, "batch": 99},
        "latest": {"ledger": 123456, "entry": 98765, "batch": -1},
        "entries_behind": 86420,
    }
    for partition in (8, 9)
]
PARTITIONS = [
    {"topic": TOPIC, "partition": partition, "broker": f"pulsar-broker-{partition}.pulsar.svc.cluster.local:6650"}
    for partition in range(3)
]
NSQ = [
    {
        "topic": "flights-of-a-year-with-all-of-their-delays-and-the-reasons-of-them",
        "channel": "a-query-that-writes-the-flights-to-a-table",
        "nsqd": f"nsqd-{number}.brokers.internal.example.com:4150",
        "waiting": 123456,
        "in_flight": 2500,
        "deferred": None,
        "paused": False,
    }
    for number in range(2)
]


def printed(rows: Sequence[Mapping[str, object]], width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table_of(rows, console))
    output: io.StringIO = console.file  # type: ignore[assignment]
    return output.getvalue()


def characters(*texts: str) -> Counter[str]:
    return Counter("".join("".join(texts).split()))


@pytest.mark.parametrize("rows", [LAG, PARTITIONS, NSQ])
def test_a_table_of_long_names_fits_80_columns(rows: Sequence[Mapping[str, object]]):
    output = printed(rows, 80)
    assert max(map(len, output.splitlines())) <= 80
    # Names and numbers are complete.
    assert output.split("\n")[0].split() == list(rows[0])
    for name, value in rows[0].items():
        assert not isinstance(value, int) or str(value).lower() in output, name


def test_positions_are_short_and_rows_stay_apart():
    lines = [line.rstrip() for line in printed(LAG, 80).splitlines()]
    assert [line.split()[1:] for line in lines if "123456" in line] == [
        ["8", "123456:12345:99", "123456:98765", "86420"],
        ["9", "123456:12345:99", "123456:98765", "86420"],
    ]
    assert lines.count("") == 2
    assert "".join(line.split()[0] for line in lines[2:] if line).count(TOPIC) == 2


def test_a_wide_terminal_shows_each_row_on_one_line():
    lines = printed(LAG, 200).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [TOPIC, "8", "123456:12345:99", "123456:98765", "86420"]


def test_a_topic_without_partitions_has_no_partition_of_a_number():
    rows = [{"topic": "flights", "partition": -1, "partitions": 0, "entries": 0}]
    assert re.split(r"  +", printed(rows, 80).splitlines()[1].strip()) == [
        "flights",
        "not partitioned",
        "not partitioned",
        "0",
    ]


CELLS = (
    st.none()
    | st.integers(-(10**18), 10**18).filter(lambda number: number != -1)  # shown in words as a partition
    | st.text(string.ascii_letters + string.digits + "-_.:/[]äß", max_size=120)
)


@given(
    rows=st.integers(1, 7).flatmap(
        lambda columns: st.lists(st.tuples(*[CELLS] * columns), min_size=1, max_size=4).map(
            lambda found: [dict(zip(("topic", "partition", *"abcde"), row, strict=False)) for row in found]
        )
    ),
    width=st.integers(40, 160),
)
def test_no_cell_is_truncated(rows: Sequence[Mapping[str, object]], width: int):
    output = printed(rows, width)
    assert max(map(len, output.splitlines())) <= width
    cells = ["NULL" if value is None else str(value) for row in rows for value in row.values()]
    assert characters(output) == characters(*rows[0], *cells)


def test_rows_as_json_are_a_line_each(capsys: pytest.CaptureFixture[str]):
    show(iter([{"topic": "t", "latest": {"ledger": 1, "entry": 2, "batch": -1}}]), json=True)
    assert capsys.readouterr().out == '{"topic": "t", "latest": {"ledger": 1, "entry": 2, "batch": -1}}\n'
    show([], json=True)
    assert capsys.readouterr().out == ""


def test_an_empty_table_is_reported(capsys: pytest.CaptureFixture[str]):
    show([], json=False)
    assert capsys.readouterr().out == "nothing\n"
