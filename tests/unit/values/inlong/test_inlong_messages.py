"""InLong's messages, written by hand, as records."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import pytest

from spark_mq_source.values._loops_python import BadPayloadError
from spark_mq_source.values.inlong import messages
from spark_mq_source.values.inlong.messages import records_of
from tests.oracles.inlong import binary_msg, inlong_msg, of_version_4, proxy, sized

ATTRIBUTES = "groupId=g&streamId=s&dt=1700000000001&NodeIP=10.0.0.1"
OBJECT = {"msg_time": 1700000000001, "source_ip": "10.0.0.1", "body": b"a", "params": [{"key": "k", "value": "v"}]}


def read(payload: bytes, **properties: str) -> list[tuple[Any, ...]]:
    return [
        (head.group_id, head.stream_id, head.time_us, dict(head.attributes), record)
        for head, record in records_of(payload, properties)
    ]


def of(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split("&"))


@pytest.mark.parametrize("snappy", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_blocks_of_records_with_the_same_attributes(version: int, snappy: bool) -> None:
    message = inlong_msg(version, [(ATTRIBUTES, [b"a", b""]), ("streamId=ü\0😀", [b"b"])], snappy=snappy)
    found = [("g", "s", 1_700_000_000_001_000, of(ATTRIBUTES), record) for record in (b"a", b"")]
    assert read(message) == [*found, (None, "ü\0😀", None, {"streamId": "ü\0😀"}, b"b")]
    assert read(message, version="2") == read(message)


def test_records_with_separate_attributes() -> None:
    inner = sized(b"a", b"k=1", b"b", b"k=2")
    found = [("g", "s", 1_700_000_000_001_000, of(f"{ATTRIBUTES}&k={n}"), one) for n, one in ((1, b"a"), (2, b"b"))]
    assert read(inlong_msg(3, [(ATTRIBUTES, [inner])])) == found
    numbered = {"groupId": "3", "streamId": "4", "dt": "7000", "cnt": "1"}
    message = of_version_4(binary_msg(inner, "x=y", flags=1, snappy=True))
    assert read(message) == [
        ("3", "4", 7_000_000, {"k": str(n), "x": "y", **numbered}, one) for n, one in ((1, b"a"), (2, b"b"))
    ]


def test_a_binary_message() -> None:
    message = of_version_4(binary_msg(sized(b"a", b"b"), "groupId=g&streamId=s", flags=4, count=2))
    head = {"groupId": "g", "streamId": "s", "dt": "7000", "cnt": "2"}
    assert read(message) == [("g", "s", 7_000_000, head, record) for record in (b"a", b"b")]


@pytest.mark.parametrize(
    ("pack", "name"),
    [
        (bytes, "NONE"),
        (gzip.compress, "INLONG_GZ"),
        (lambda data: bytes(cramjam.snappy.compress_raw(data)), "INLONG_SNAPPY"),
    ],
)
def test_protobuf(pack: Callable[[bytes], bytes], name: str) -> None:
    objects = proxy.MessageObjs(msgs=[OBJECT, {**OBJECT, "params": []}]).SerializeToString()
    properties = {"inlongGroupId": "g", "inlongStreamId": "s"}
    records = [
        ("g", "s", 1_700_000_000_001_000, {"sourceIp": "10.0.0.1", **more}, b"a")
        for more in ({"k": "v"}, dict[str, str]())
    ]
    assert read(pack(objects), version="1", compressType=name, **properties) == records
    number = ["NONE", "INLONG_GZ", "INLONG_SNAPPY"].index(name)
    assert read(pack(objects), msgEnType="1", compressType=str(number), **properties) == records
    header = {"group": "g", "stream": "s", "compress_type": number}
    header |= dict.fromkeys(("pack_id", "pack_time", "msg_count", "src_length", "compress_len"), 1)
    assert read(proxy.MessagePack(header=header, compress_bytes=pack(objects)).SerializeToString()) == records
    assert read(b"", version="1") == []


def test_a_bare_record_has_only_the_names_of_inlong() -> None:
    own = {"id": "7", "tid": "8", "iname": "9", "dt": "today", "t": "yesterday"}
    ours = {"inlongGroupId": "g", "inlongStreamId": "s", "msgTime": "5"}
    for named, time_us in ((ours, 5000), ({**ours, "groupId": "x", "streamId": "x"}, 5000),
                           ({"groupId": "g", "streamId": "s"}, None)):  # fmt: skip
        properties = {"version": "0", **named, **own}
        assert read(b"a", **properties) == [("g", "s", time_us, properties, b"a")]


@pytest.mark.parametrize(
    ("attributes", "time_us"),
    [("dt=5&t=2024", 5000), ("t=20240229", 1709136000000000), ("t=2024022902", 1709143200000000),
     ("t=202402290203", 1709143380000000), ("t=2024", None), ("x=1", None)],
)  # fmt: skip
def test_the_time(attributes: str, time_us: int | None) -> None:
    zone = "Asia/Shanghai"
    ((head, _),) = records_of(inlong_msg(1, [(attributes, [b"a"])]), {}, zone)
    assert head.time_us == time_us


BOMB = b"\xff\xff\xff\x7f"
LONG = inlong_msg(1, [(ATTRIBUTES, [b"abc"])])


@pytest.mark.parametrize(
    ("payload", "properties", "why"),
    [
        (b"", {}, "it does not begin and end as an InLongMsg"),
        (LONG[:-1], {}, "it does not begin and end as an InLongMsg"),
        (b"hello, world", {"version": "2"}, "it does not begin and end as an InLongMsg"),
        (b"hello, world", {}, "it is neither an InLongMsg nor protobuf of InLong"),
        (b"hello, world", {"version": "7"}, r"\(property version: 7\)"),
        (b"\x0a\x00", {}, "a message lacks field 2"),
        (b"\x0a\x02\x08\x01", {"version": "1"}, "a message lacks field 2"),
        (b"x", {"version": "1", "compressType": "LZO"}, "the compression LZO is unknown"),
        (b"xyz", {"version": "1", "compressType": "1"}, "the gzip does not decompress"),
        (gzip.compress(b"x")[:-1], {"version": "1", "compressType": "1"}, "the gzip does not end"),
        (BOMB + b"x", {"version": "1", "compressType": "2"}, "5 bytes of snappy announce 268435455 bytes"),
        (LONG.replace(b"\0\0\0\3abc", b"\0\0\0\4abc"), {}, "a record of 4 bytes at offset 4, where 3 bytes remain"),
        (LONG[:-2] + b"more" + LONG[-2:], {}, "4 bytes at offset 81 belong to no part"),
        (LONG[:10] + b"\xff" * 4 + LONG[14:], {}, "-1 blocks are announced"),
        (LONG.replace(b"NodeIP", b"Node\xffP"), {}, "the attributes are not UTF-8"),
        (LONG.replace(b"&NodeIP=", b"&NodeIP:").replace(b"=", b":"), {}, "is an entry without '='"),
        (LONG.replace(b"1700", b"x700"), {}, "the time x700000000001 is not a number"),
        (inlong_msg(3, [("a=b", [sized(b"", b"k=1")])]), {}, "a record with attributes has none, or is empty"),
        (of_version_4(binary_msg(b"", "a")), {}, "the attributes 'a' are not one text key=value"),
        (of_version_4(binary_msg(b"")[:-1] + b"\2"), {}, "the mark ee 01 does not follow"),
        (of_version_4(b"\0\0\0\1" + binary_msg(b"")[4:]), {}, "1 bytes are announced, but there are 25"),
        (of_version_4(binary_msg(b"")[:4] + b"\x47" + binary_msg(b"")[5:]), {}, "the compression 9 is unknown"),
    ],
)  # fmt: skip
def test_damage_is_an_error_that_names_its_place(payload: bytes, properties: dict[str, str], why: str) -> None:
    with pytest.raises(BadPayloadError, match=why):
        list(records_of(payload, properties))


def test_a_gzip_bomb_is_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(BadPayloadError, match="the gzip does not end after 1000 bytes"):
        list(records_of(gzip.compress(bytes(10_000)), {"version": "1", "compressType": "1"}))
    body = b"\1" + b"\xe9\7" + bytes(200)
    payload = LONG[:14] + struct.pack(">H", 0) + sized(body) + LONG[-2:]
    with pytest.raises(BadPayloadError, match="202 bytes of snappy announce 1001 bytes"):
        list(records_of(payload, {}))
