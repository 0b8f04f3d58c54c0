"""Storms over writes: topics are unloaded and attempts are killed while the tasks of a job write, round by round.

    python -m tests.behaviours.pulsar.storm --pulsar-url pulsar://127.0.0.1:6650 --rounds 30 --seed 1

needs a broker with transactions (`make brokers`). Each round is one job: tasks in threads, each with one attempt
after the other, as Spark makes them, and a commit of all. What can be read afterwards is compared as a list.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pulsar as official
import pyarrow as pa

from brokers.pulsar_admin import PulsarAdmin
from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.write.transactions import Transaction, commit_transactions
from spark_mq_source.pulsar.write.writer import PulsarWriter

TASKS = 3
PARTITIONS = 2
ROWS = 9000
BATCH_ROWS = 300
SECONDS_PER_BATCH = 0.05
"""Spark's rows come slowly enough that an attempt sees several unloads."""
MAX_ATTEMPTS = 40
"""More than there are unloads, each of which can fail one."""
MAX_KILLS = 3
KINDS = (("exactly-once", True), ("transaction", True), ("transaction", False))
"""A guarantee, and whether the namespace deduplicates."""


class KilledError(Exception):
    """The process of an attempt was killed."""


@dataclass
class Storm:
    """One round.

    Args:
        service_url: the broker's.
        admin: its admin interface.
        namespace: keeps data.
        guarantee: `deliveryGuarantee`.
        seed: of all choices but the broker's.

    Attributes:
        unloads: how often a topic-partition was unloaded.
        kills: how many attempts were killed.
        failures: how many attempts failed.
    """

    service_url: str
    admin: PulsarAdmin
    namespace: str
    guarantee: str
    seed: int
    unloads: int = 0
    kills: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Writes all rows, and reads them back.

        Raises:
            AssertionError: a row is not there once, or a task's rows are in another order; the message has the seed.
        """
        rng = random.Random(self.seed)
        topic = self.admin.create_topic(f"persistent://{self.namespace}/storm-{self.seed}-{time.time_ns()}", PARTITIONS)
        given = {
            "serviceurl": self.service_url,
            "topic": topic,
            "deliveryguarantee": self.guarantee,
            "batchingmaxmessages": "50",
            "operationtimeout": "20s",
        }
        if self.guarantee == "transaction":
            given["transactiontimeout"] = "20s"  # as long as a killed attempt hides what comes behind it
        options = PulsarOptions.from_spark(given, WRITE)
        seeds = [rng.random() for _ in range(TASKS)]
        is_over = threading.Event()
        unloading = threading.Thread(target=self._unload, args=(topic, rng, is_over))
        unloading.start()
        try:
            with ThreadPoolExecutor(TASKS) as threads:
                ended = list(threads.map(lambda task: self._task(options, task, seeds[task]), range(TASKS)))
        finally:
            is_over.set()
            unloading.join()
        commit_transactions(options, [one for one in ended if one is not None])
        partitions = [f"{topic}-partition-{number}" for number in range(PARTITIONS)]
        self._await_transactions(partitions)
        found = [self._read(partition) for partition in partitions]
        expected = [row for task in range(TASKS) for row in rows_of(task)]
        assert sorted(found[0] + found[1]) == expected, f"seed {self.seed}: {self._difference(found, expected)}"
        for task in range(TASKS):
            for rows in found:
                mine = [row for row in rows if row[:1] == b"%d" % task]
                assert mine == sorted(mine), f"seed {self.seed}: rows of task {task} are out of order"

    def _task(self, options: PulsarOptions, task: int, seed: float) -> Transaction | None:
        """Runs attempts until one succeeds."""
        rng = random.Random(seed)
        for attempt in range(MAX_ATTEMPTS):
            kill_at = rng.randrange(2 * ROWS) if attempt < MAX_KILLS else ROWS
            writer = PulsarWriter(options, TaskAttempt(f"storm-{self.seed}", partition=task, attempt=attempt))
            try:
                transaction = write(writer, task, kill_at)
            except KilledError:
                # Its connections end, and it does nothing more.
                writer.close()
                self.kills += 1
            except MQSourceError as error:
                writer.__exit__(type(error), error, None)
                self.failures[type(error).__name__] += 1
            else:
                writer.close()
                return transaction
        raise AssertionError(f"seed {self.seed}: {MAX_ATTEMPTS} attempts have failed: {dict(self.failures)}")

    def _unload(self, topic: str, rng: random.Random, is_over: threading.Event) -> None:
        for _ in range(rng.randrange(10, 31)):
            if is_over.wait(rng.uniform(0.01, 0.2)):
                return
            self.admin.unload(f"{topic}-partition-{rng.randrange(PARTITIONS)}")
            self.unloads += 1

    def _await_transactions(self, partitions: list[str]) -> None:
        """Those of killed attempts hide what comes behind them until their time is up."""
        deadline = time.monotonic() + 180
        while self.guarantee == "transaction" and self.admin.open_transactions(partitions):
            assert time.monotonic() < deadline, f"seed {self.seed}: a transaction never ended"
            time.sleep(0.5)  # the broker offers no event for it

    def _read(self, partition: str) -> list[bytes]:
        client = official.Client(self.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
        try:
            reader = client.create_reader(partition, official.MessageId.earliest)
            found = []
            while reader.has_message_available():
                found.append(bytes(reader.read_next(20_000).data()))
            return found
        finally:
            client.close()

    @staticmethod
    def _difference(found: list[list[bytes]], expected: list[bytes]) -> str:
        counts, wanted = Counter(found[0] + found[1]), Counter(expected)
        return f"{(wanted - counts).total()} rows are missing, {(counts - wanted).total()} are there too often"


def rows_of(task: int) -> list[bytes]:
    """All rows of a task."""
    return [b"%d-%06d" % (task, number) + b"-" * 90 for number in range(ROWS)]


def write(writer: PulsarWriter, task: int, kill_at: int) -> Transaction | None:
    """Writes a task's rows, or is killed on the way.

    Raises:
        KilledError: that is it.
    """
    rows = rows_of(task)
    for start in range(0, ROWS, BATCH_ROWS):
        if start >= kill_at:
            raise KilledError
        time.sleep(SECONDS_PER_BATCH)
        writer.write(pa.record_batch({"value": pa.array(rows[start : start + BATCH_ROWS], pa.binary())}))
    return writer.finish()


def storms(service_url: str, admin: PulsarAdmin, seed: int, rounds: int) -> Iterator[Storm]:
    """Runs rounds of every kind in turn; each as it has ended.

    Raises:
        AssertionError: see `Storm.run`.
    """
    namespaces = {}
    for deduplicates in (True, False):
        name = admin.create_namespace(f"public/storm-{time.time_ns()}")
        admin.set_deduplication(name, enabled=deduplicates)
        namespaces[deduplicates] = name
    for number in range(rounds):
        guarantee, deduplicates = KINDS[number % len(KINDS)]
        storm = Storm(service_url, admin, namespaces[deduplicates], guarantee, seed + number)
        storm.run()
        yield storm


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.behaviours.pulsar.storm", description=__doc__)
    parser.add_argument("--pulsar-url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--pulsar-admin-url", default="http://127.0.0.1:8080")
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print("first seed", given.seed)  # noqa: T201
    total: Counter[str] = Counter()
    for storm in storms(given.pulsar_url, PulsarAdmin(given.pulsar_admin_url), given.seed, given.rounds):
        counts: dict[str, Any] = {"rounds": 1, "unloads": storm.unloads, "kills": storm.kills, **storm.failures}
        total.update(counts)
        print(storm.seed, storm.guarantee, storm.namespace, counts, flush=True)  # noqa: T201
    print("each row once in every round:", dict(total))  # noqa: T201


if __name__ == "__main__":
    main()
