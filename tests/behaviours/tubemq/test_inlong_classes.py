"""InLong's formats, compared with InLong's own classes: random messages both ways, and damaged ones."""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from brokers.cache import artifact_with_dependencies
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.values._loops_python import BadPayloadError
from spark_mq_source.values.encoders import encoder_for
from spark_mq_source.values.encodings import Encoding, type_of
from spark_mq_source.values.inlong.fields import RecordDocuments, StreamLayout
from spark_mq_source.values.inlong.messages import records_of
from spark_mq_source.values.inlong.texts import Delimiters, join_texts, split_csv, split_kv
from spark_mq_source.values.json.decode import json_decoder
from tests.java_program import JavaProgram
from tests.oracles.inlong import (
    binary_msg,
    inlong_msg,
    of_version_4,
    random_attributes,
    random_records,
    random_text,
    sized,
)

CLASSES = "org.apache.inlong:sort-format-common:1.11.0"
SEED = 20240229
MESSAGES = 3000


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    jars = artifact_with_dependencies(CLASSES, say=f"Fetching {CLASSES} (25 MB, once) ...")
    program = JavaProgram("InlongFormats.java", jars, tmp_path_factory.mktemp("java") / "inlong.log")
    yield program
    program.close()


def ask(java: JavaProgram, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the answers; None for requests that Java refuses."""
    answers = java.ask({"requests": requests})
    return [None if isinstance(answer, dict) and answer.keys() == {"error"} else answer for answer in answers]


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def parsed_by_java(java: JavaProgram, payloads: Sequence[bytes]) -> list[dict[str, list[str]] | None]:
    """Return the records of each message by their attributes; None for one that Java refuses."""
    answers = ask(java, [{"op": "parse", "payload": text_of(payload)} for payload in payloads])
    return [
        None if answer is None else grouped((one["attributes"], one["records"]) for one in answer) for answer in answers
    ]


def parsed_by_us(payload: bytes) -> dict[str, list[str]] | None:
    try:
        return grouped((head.attributes, [text_of(record)]) for head, record in records_of(payload, {"version": "2"}))
    except BadPayloadError:
        return None


def grouped(records: Iterator[tuple[Any, list[str]]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for attributes, some in records:
        found[json.dumps(attributes, sort_keys=True)] += some
    return {attributes: some for attributes, some in found.items() if some}


def with_attributes(rng: random.Random) -> bytes:
    records = random_records(rng)
    return sized(*itertools.chain(*((record, f"k={rng.randrange(3)}".encode()) for record in records)))


def random_binary(rng: random.Random) -> bytes:
    """Return the inner part of a message of version 4."""
    flags = rng.choice((0, 1, 4, 5))
    body = with_attributes(rng) if flags & 1 else sized(*random_records(rng))
    attributes = random_attributes(rng, "abcö/:._-0123456789").replace("&dt=", "&x=")
    return binary_msg(body, attributes, flags=flags, seconds=rng.randrange(-5, 2**31), snappy=rng.random() < 0.3)


def random_build(rng: random.Random) -> dict[str, Any]:
    """Return a request for Java to build a message of version 1 to 4."""
    version = rng.randrange(1, 5)
    if version == 4:
        parts = [["", text_of(random_binary(rng))]]
    elif version == 3:
        parts = [[random_attributes(rng), text_of(with_attributes(rng))] for _ in range(rng.randrange(1, 4))]
    else:
        parts = [
            [attributes, text_of(record)]
            for attributes in (random_attributes(rng) for _ in range(rng.randrange(1, 4)))
            for record in random_records(rng)
        ]
    return {"op": "build", "version": version, "compress": rng.random() < 0.5, "time": 5, "parts": parts}


def random_message(rng: random.Random) -> bytes:
    """Return a message of version 0 to 4 encoded by this package."""
    version, snappy = rng.randrange(5), rng.random() < 0.5
    if version == 4:
        return of_version_4(random_binary(rng))
    attributes = {random_attributes(rng): None for _ in range(rng.randrange(1, 4))}
    blocks = [(one, [with_attributes(rng)] if version == 3 else random_records(rng)) for one in attributes]
    return inlong_msg(version, blocks, snappy=snappy)


def damaged(rng: random.Random, message: bytes) -> bytes:
    """Return a message with some bytes changed, removed or inserted; its ends stay."""
    data = bytearray(message)
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(2, len(data) - 1)
        how = rng.randrange(3)
        if how == 0:
            data[at : at + 1] = bytes([rng.choice((0, 1, 255, data[at] ^ 1 << rng.randrange(8)))])
        elif how == 1:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data[:-2]) + message[-2:]


def test_messages_built_by_inlongs_classes_have_the_same_records(java: JavaProgram) -> None:
    rng = random.Random(SEED)
    built = ask(java, [random_build(rng) for _ in range(MESSAGES)])
    assert None not in built
    payloads = [base64.b64decode(one) for one in built]
    assert [parsed_by_us(payload) for payload in payloads] == parsed_by_java(java, payloads)


def test_messages_encoded_here_have_the_same_records_for_inlongs_classes(java: JavaProgram) -> None:
    rng = random.Random(SEED)
    payloads = [random_message(rng) for _ in range(MESSAGES)]
    ours = [parsed_by_us(payload) for payload in payloads]
    assert None not in ours
    assert parsed_by_java(java, payloads) == ours


def test_rows_written_here_have_the_same_records_for_inlongs_classes(java: JavaProgram) -> None:
    rng = random.Random(SEED)
    rows = [
        {
            "groupId": random_text(rng),
            "streamId": random_text(rng),
            "dt": rng.randrange(10**15),
            "attributes": [(f"k{n}", random_text(rng)) for n in range(rng.randrange(4))],
            "data": rng.randbytes(rng.randrange(200)),
        }
        for _ in range(MESSAGES)
    ]
    encoding = Encoding("inlong")
    values = pa.array(rows, type_of(encoding))
    payloads = encoder_for(encoding, values.type)(values).to_pylist()
    assert parsed_by_java(java, payloads) == [
        {
            json.dumps(
                {**{name: row[name] for name in ("groupId", "streamId")}, "dt": str(row["dt"] // 1000)}
                | dict(row["attributes"]),
                sort_keys=True,
            ): [text_of(row["data"])]
        }
        for row in rows
    ]


def test_a_damaged_message_is_refused_or_has_the_records_that_java_finds(java: JavaProgram) -> None:
    """Java ignores damage that loses records, so more messages are refused here; accepted ones are the same."""
    rng = random.Random(SEED)
    payloads = [damaged(rng, random_message(rng)) for _ in range(MESSAGES)]
    both = [*zip((parsed_by_us(payload) for payload in payloads), parsed_by_java(java, payloads), strict=True)]
    accepted = [(ours, theirs) for ours, theirs in both if ours is not None]
    assert all(theirs == ours for ours, theirs in accepted if theirs is not None)
    # Java refuses a negative number of records, and the published splitKv `=` in a value, which later ones accept.
    assert sum(theirs is None for _, theirs in accepted) < len(accepted) // 50
    assert len(both) // 20 < len(accepted) < len(both)


# -- the fields of records

DELIMITERS = [
    Delimiters("|"),
    Delimiters("|", line="\n"),
    Delimiters("|", escape="\\"),
    Delimiters("|", line="\n", escape="\\", quote="'"),
]


def request_of(op: str, text: str, delimiters: Delimiters) -> dict[str, Any]:
    return {"op": op, "text": text, **asdict(delimiters)}


@pytest.mark.parametrize(
    ("op", "delimiters"),
    # With an escape or quote, the published splitKv takes keys for values; later ones do not.
    [*(("csv", one) for one in DELIMITERS), *(("kv", replace(one, key="=")) for one in DELIMITERS[:2])],
    ids=str,
)
def test_texts_are_split_as_by_inlongs_classes(java: JavaProgram, op: str, delimiters: Delimiters) -> None:
    """Each side refuses texts that the other accepts, such as an open quote here, and `=` in a value there."""
    rng = random.Random(SEED)
    texts = ["".join(rng.choices("ab=" + delimiters.special, k=rng.randrange(8))) for _ in range(MESSAGES)]
    theirs = ask(java, [request_of(op, text, delimiters) for text in texts])
    ours = [split_by_us(op, text, delimiters) for text in texts]
    both = [(mine, answer) for mine, answer in zip(ours, theirs, strict=True) if None not in (mine, answer)]
    assert [mine for mine, _ in both] == [answer for _, answer in both]
    assert len(both) > MESSAGES // 20


def split_by_us(op: str, text: str, delimiters: Delimiters) -> list[Any] | None:
    try:
        return [*(split_csv(text, delimiters, 99) if op == "csv" else split_kv(text, delimiters))]
    except BadPayloadError:
        return None


def test_texts_joined_here_are_split_by_inlongs_classes(java: JavaProgram) -> None:
    rng = random.Random(SEED)
    for delimiters in DELIMITERS[2:]:
        rows = [[random_text(rng, "ab" + delimiters.special) for _ in range(3)] for _ in range(MESSAGES)]
        texts = [join_texts(row, delimiters, "|") for row in rows]
        assert ask(java, [request_of("csv", text, delimiters) for text in texts]) == [[row] for row in rows]


@pytest.mark.parametrize(
    ("java_type", "ddl", "alphabet"),
    [("Byte", "tinyint", "0123-+ "), ("Short", "smallint", "0123-+ "), ("Int", "int", "0123456789-+"),
     ("Long", "bigint", "0123456789-+"), ("Float", "float", "0019.eE-+"), ("Double", "double", "0019.eE-+"),
     ("Decimal", "decimal(38,10)", "019.-+ ")],
)  # fmt: skip
def test_numbers_are_read_as_by_inlongs_classes(java: JavaProgram, java_type: str, ddl: str, alphabet: str) -> None:
    rng = random.Random(SEED)
    texts = ["".join(rng.choices(alphabet, k=rng.randrange(1, 6))) for _ in range(MESSAGES)]
    type_ = arrow_type_of_ddl(f"v {ddl}")
    documents = RecordDocuments(type_, StreamLayout())
    found = json_decoder(type_).decode(pa.array([next(documents.rows(text.encode(), {})) for text in texts]))
    ours = [None if row in found.reasons else value["v"] for row, value in enumerate(found.values.to_pylist())]
    theirs = ask(java, [{"op": "cell", "type": java_type, "text": text} for text in texts])
    theirs = [None if text in (None, "Infinity", "-Infinity") else text for text in theirs]
    expected = pa.array([None if text is None else (Decimal if ddl[:3] == "dec" else float)(text) for text in theirs])
    assert ours == expected.cast(type_.field(0).type).to_pylist()
    assert any(ours)
