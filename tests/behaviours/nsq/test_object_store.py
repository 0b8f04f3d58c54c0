"""walDir on an object store with conditional writes: a real S3 server, and the client that the extra `s3` installs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_mq_source.core.errors import DataLossError, OptionError, StorageError, UnsupportedFeatureError
from spark_mq_source.net.storage import ObjectStore, open_store
from tests.behaviours.nsq.reads import Query, numbered, read, read_options, read_tasks
from tests.fix_brokers import NsqUnderTest
from tests.fix_s3 import S3Server

WRITERS = 8
ROUNDS = 25


def test_one_of_many_writers_creates_an_object(s3: S3Server):
    stores = [open_store(f"{s3.url}/wal") for _ in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            path = f"a/{number}"

            def create(writer: int, path: str = path) -> bool:
                return stores[writer].create(path, b"%d" % writer)

            made = list(pool.map(create, range(WRITERS)))
            assert made.count(True) == 1
            assert stores[0].read(path) == b"%d" % made.index(True)


def test_objects_are_files(s3: S3Server):
    store = open_store(f"{s3.url}/some/prefix/", probe=True)
    assert store.names("") == [], "the probe is gone"
    store.write("a/b/c", b"1")
    store.write("a/d", b"2")
    store.write("ab", b"3")
    assert store.where("a/d") == f"{s3.url}/some/prefix/a/d"
    assert sorted(store.names("a")) == ["b", "d"]
    assert store.exists("a/d")
    assert not store.exists("a/e")
    store.remove("a")
    store.remove("a")
    assert store.names("a") == []
    assert store.read("ab") == b"3"
    with pytest.raises(FileNotFoundError):
        store.read("a/d")


def test_an_object_whose_write_lost_its_answer_is_recognized(s3: S3Server):
    store = open_store(s3.url)
    store.write("a", b"ours")
    assert store.create("a", b"ours")
    assert not store.create("a", b"another's")


def test_a_stream_keeps_its_batches_in_the_object_store(nsq: NsqUnderTest, s3: S3Server):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(3000))
    q = Query(nsq, topic, f"{s3.url}/wal", maxRowsPerTrigger=2000)  # type: ignore[arg-type]
    tasks = q.tasks()
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(read_tasks, [q.options] * 2, [tasks] * 2)
    assert one.equals(two)
    assert sorted(q.until(3000)) == numbered(3000)
    q.restart()
    assert q.trigger() == []
    store = open_store(f"{s3.url}/wal")
    assert store.names(str(q.at["wal"])) == [str(q.at["batch"])], "what nobody needs is deleted"


def test_a_run_is_read_again_and_damage_is_detected(nsq: NsqUnderTest, s3: S3Server):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(300))
    options = read_options(nsq, topic, walDir=f"{s3.url}/wal", runId="r", maxRows=300)
    first = read(options)
    assert read(options).equals(first)
    store = open_store(f"{s3.url}/wal")
    (name,) = (name for name in store.names("run-r/0") if name.endswith(".arrow"))
    data = store.read(f"run-r/0/{name}")
    store.write(f"run-r/0/{name}", data[:-1] + b"x")
    with pytest.raises(DataLossError, match=f"{s3.url}/wal/run-r/0/{name} is damaged: its CRC32C"):
        read(options)


def test_an_unusable_wal_dir_is_refused_before_a_message_is_read(
    nsq: NsqUnderTest, s3: S3Server, monkeypatch: pytest.MonkeyPatch
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(3))
    with pytest.raises(OptionError, match=r"nsq: walDir s3://no-such-bucket/wal cannot be written to: s3://no-such"):
        read(read_options(nsq, topic, walDir="s3://no-such-bucket/wal", runId="r"))
    put = ObjectStore.write
    monkeypatch.setattr(ObjectStore, "create", lambda self, path, data: put(self, path, data) is None)
    with pytest.raises(UnsupportedFeatureError, match=r"walDir s3://wal-bucket/wal cannot create a file exclusively"):
        read(read_options(nsq, topic, walDir=f"{s3.url}/wal", runId="r"))
    assert nsq.channel_stats(topic, "c")["depth"] == 3


def test_a_refusal_by_the_store_is_an_error_in_one_line(s3: S3Server):
    store = open_store("s3://no-such-bucket", name="nsq: walDir ")
    with pytest.raises(
        StorageError, match=r"^nsq: walDir s3://no-such-bucket/a cannot be written \([^\n]*\); free space"
    ):
        store.write("a", b"x")


def test_a_store_that_does_not_answer_is_an_error(s3: S3Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(OptionError, match=f"^nsq: walDir {s3.url} cannot be written to: {s3.url}/probe"):
        open_store(s3.url, name="nsq: walDir ", probe=True)
