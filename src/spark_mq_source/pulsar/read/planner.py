"""Plans of a query: topics and offsets in the options become bounded ranges, one per task."""

from __future__ import annotations

import datetime
import itertools
import logging
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    MQSourceError,
    OptionError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from spark_mq_source.core.ports import Predicate
from spark_mq_source.core.shared_options import OnCorrupt
from spark_mq_source.net.retry import Deadline
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.client.client import PulsarClient, connected
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.options.reading import ALWAYS, NEVER
from spark_mq_source.pulsar.protocol.offloaded import OBJECT_DRIVERS
from spark_mq_source.pulsar.read.limits import Limiter
from spark_mq_source.pulsar.read.offloaded import RANGE_BYTES, open_objects, split_by_storage
from spark_mq_source.pulsar.read.reader import PulsarRange, past_the_end
from spark_mq_source.pulsar.read.stops import stored_ends

logger = logging.getLogger(__name__)

LEDGERS_MS: Final = 60_000
"""Time after which a stream asks again which ledgers are offloaded."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
}


def plan_batch(options: PulsarOptions, predicates: Sequence[Predicate] = ()) -> list[PulsarRange]:
    """Plan the ranges of one batch read, fixed now: reading them twice gives the same rows.

    Predicates on `topic` and `partition` drop whole partitions; those on `publish_time` move start and end to the
    broker's positions of these times, with a tolerance of `publishTimeSlack`. Others have no effect.

    Raises:
        OptionError: offsets that name unknown topic-partitions, or leave some out.
        TopicNotFoundError: a topic does not exist; it is not created.
        DataLossError: messages after the start have been deleted, and `failOnDataLoss` is true.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    # Its connections are not handed over: the tasks run elsewhere.
    with PulsarClient(options) as client:
        try:
            return _ranges_of(client, options, predicates)
        except MQSourceError as error:
            raise error.within("pulsar-native: planning") from error


def check_dead_letter_topic(options: PulsarOptions) -> None:
    """Check, before the first dead letter, that its topic exists; create it with `createTopic`.

    Raises:
        TopicNotFoundError: it does not exist.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    if options.on_corrupt is not OnCorrupt.DEAD_LETTER:
        return
    topic = options.dead_letter_topic or ""
    with connected(options, f"pulsar-native: deadLetterTopic {topic}") as client:
        client.fetch_partitions([topic], create=options.create_topic)


def _ranges_of(client: PulsarClient, options: PulsarOptions, predicates: Sequence[Predicate]) -> list[PulsarRange]:
    partitions = client.fetch_partitions(topics_of(client, options))
    check_named(options, partitions)
    partitions = [tp for tp in partitions if _may_match(tp, predicates)]
    bounds = client.confirmed(lambda: client.fetch_bounds(partitions))
    starts = resolve_positions(client, "starting", options.starting_at, partitions)
    ends = resolve_positions(client, "ending", options.ending_at, partitions)
    ends |= stored_ends(client, {tp: at for tp, at in ends.items() if EARLIEST < at < bounds[tp].last})
    check_not_past_the_end(client, options, starts, bounds)
    lower, upper = _publish_times(predicates)
    # Times need not ascend, and a broker with its own, later, times searches those. It does not search the compacted
    # ledger, which may have messages before the position that it finds.
    slack = options.publish_time_slack_ms
    searched = lower if not options.read_compacted else []
    after = client.fetch_positions_at(dict.fromkeys(partitions, max(searched) - slack)) if searched else {}
    until = client.fetch_positions_at(dict.fromkeys(partitions, min(upper) + slack)) if upper else {}
    begins = {
        tp: max(_checked_start(client, options, tp, starts[tp], bounds[tp]), after.get(tp, EARLIEST))
        for tp in partitions
    }
    ranges = [
        PulsarRange(tp, begins[tp], min(ends[tp], bounds[tp].last, until.get(tp, LATEST)), query_start=begins[tp])
        for tp in partitions
    ]
    with closing(Limiter(client, options)) as limiter:
        return TaskSplitter(client, options, limiter).split([r for r in ranges if r.start < r.end])


def _may_match(tp: TopicPartition, predicates: Sequence[Predicate]) -> bool:
    values = {"topic": tp.topic, "partition": tp.partition}
    return all(_COMPARISONS[p.operator](values[p.column], p.value) for p in predicates if p.column in values)


def _publish_times(predicates: Sequence[Predicate]) -> tuple[list[int], list[int]]:
    """Return the first publish times that predicates allow, and those after the last, in milliseconds."""
    lower: list[int] = []
    upper: list[int] = []
    for p in predicates:
        if p.column != "publish_time" or not isinstance(p.value, datetime.datetime):
            continue
        # Publish times are whole milliseconds; conditions have microseconds.
        ms = (p.value - _EPOCH) // datetime.timedelta(milliseconds=1)
        is_whole = _EPOCH + datetime.timedelta(milliseconds=ms) == p.value
        if p.operator in (">", ">=", "="):
            lower.append(ms)
        if p.operator in ("<=", "="):
            upper.append(ms + 1)
        elif p.operator == "<":
            upper.append(ms if is_whole else ms + 1)
    return lower, upper


def _checked_start(
    client: PulsarClient, options: PulsarOptions, tp: TopicPartition, start: Position, bounds: Bounds
) -> Position:
    # EARLIEST means the messages that exist; a position means all that follow it.
    first = look_again(client, tp, start, bounds.first)
    if start >= first or start == EARLIEST:
        return max(start, first)
    options.report_loss(
        f"{tp}: the broker has deleted the messages from {start} to {first}; "
        f"start at an existing position, or set failOnDataLoss=false to begin with the messages that remain",
    )
    return first


def look_again(client: PulsarClient, tp: TopicPartition, start: Position, first: Position) -> Position:
    """Return the position before a topic-partition's first message; look it up again if `start` seems to be before it.

    TTL and truncation move all cursors, also one that was just opened, and may keep the messages that they pass: a
    subscription opened now is placed at the messages that exist.
    """
    return client.fetch_bounds([tp])[tp].first if EARLIEST < start < first else first


class TaskSplitter:
    """Division of the ranges of a batch, or of each trigger of a stream, into tasks.

    It remembers the ledgers of a topic-partition: those in the object store do not change, and the others are not
    requested again in each trigger.

    Args:
        client: asks brokers and their admin API; its owner closes it.
        options: the query's options.
        limiter: knows the sizes of ranges; its owner closes it.
    """

    def __init__(self, client: PulsarClient, options: PulsarOptions, limiter: Limiter) -> None:
        self._client = client
        self._options = options
        self._limiter = limiter
        self._ledgers: dict[TopicPartition, tuple[Deadline, Sequence[Ledger]]] = {}
        self._readable: dict[str, bool] = {}

    def split(self, ranges: Sequence[PulsarRange]) -> list[PulsarRange]:
        """Return the tasks: `minPartitions` if possible, and with `readOffloaded` of the object store or of brokers.

        Raises:
            UnsupportedFeatureError: `readOffloaded=always`, and a ledger of a range is not offloaded.
            StorageError: `readOffloaded=always`, and an index cannot be read.
            MQSourceError: the cluster or its admin API cannot be reached in time, or refuses.
        """
        options = self._options
        if options.read_offloaded == NEVER:
            return numbered(split_ranges(self._client, options, self._limiter.split(list(ranges))))
        open_objects(options).close()  # whose options are wrong for all tasks
        wanted = options.min_partitions or 1
        whole = self.by_source(ranges, sys.maxsize)
        stored = sum(x.stored_bytes for piece in whole for x in piece.ledgers)
        pieces = self.by_source(ranges, min(RANGE_BYTES, max(1, stored // wanted)))
        of_store = [piece for piece in pieces if piece.ledgers]
        rest = [piece for piece in pieces if not piece.ledgers]
        split = split_ranges(self._client, replace(options, min_partitions=max(1, wanted - len(of_store))), rest)
        logger.info("%d ranges of offloadStorage and %d of brokers", len(of_store), len(split))
        return numbered(sorted([*of_store, *split], key=lambda r: (r.topic_partition, r.start)))

    def by_source(self, ranges: Sequence[PulsarRange], range_bytes: int) -> list[PulsarRange]:
        """Return the parts of ranges that the object store has, each of about so many bytes, and those of brokers.

        Raises:
            MQSourceError: as for `split`.
        """
        return [part for r in ranges for part in split_by_storage(self._options, r, self._ledgers_of(r), range_bytes)]

    def _ledgers_of(self, r: PulsarRange) -> Sequence[Ledger]:
        """Return the ledgers of a range's topic-partition; asked again if one of the range may be offloaded since."""
        tp = r.topic_partition
        expiry, ledgers = self._ledgers.get(tp, (Deadline.after_ms(0), ()))
        stored = {x.ledger_id for x in ledgers if x.uuid}
        inside = {x.ledger_id for x in ledgers if r.start.ledger <= x.ledger_id} | {r.end.ledger}
        if not inside <= stored and (expiry.expired or self._options.read_offloaded == ALWAYS):
            try:
                if tp.topic not in self._readable:
                    self._readable[tp.topic] = self._has_readable_objects(tp)
                ledgers = self._client.fetch_ledgers(tp, with_objects=self._readable[tp.topic])
            except MQSourceError as error:
                # A broker that unloads the topic answers 412 (4.0.8, PulsarWebResource); brokers can serve the range.
                is_final = isinstance(error, (AuthenticationError, AuthorizationError, UnsupportedFeatureError))
                if is_final or self._options.read_offloaded == ALWAYS:
                    raise
                logger.warning("%s: ranges whose ledgers are unknown are read from brokers: %s", tp, error)
                return ledgers
            self._ledgers[tp] = Deadline.after_ms(LEDGERS_MS), ledgers
        return ledgers

    def _has_readable_objects(self, tp: TopicPartition) -> bool:
        """Return whether the driver by which brokers offload a topic writes objects that can be read.

        Raises:
            UnsupportedFeatureError: `readOffloaded=always`, and it does not.
        """
        driver = self._client.fetch_offload_driver(tp)
        if not driver or driver.lower() in OBJECT_DRIVERS:
            return True
        message = f"{tp.topic}: only brokers read the files of managedLedgerOffloadDriver={driver}"
        if self._options.read_offloaded == ALWAYS:
            raise UnsupportedFeatureError(f"{message}: set readOffloaded=auto or never")
        logger.warning("%s, so its ranges are read from them", message)
        return False


def check_named(options: PulsarOptions, partitions: Sequence[TopicPartition]) -> None:
    """Refuse offsets and times for topic-partitions that are not read: most likely a misspelt name.

    Raises:
        OptionError: an option names such topic-partitions.
    """
    known = {str(tp) for tp in partitions} | {tp.topic for tp in partitions}
    given = {
        "startingOffsets": options.starting_offsets,
        "endingOffsets": options.ending_offsets,
        "startingTimestamp": options.starting_timestamp,
        "endingTimestamp": options.ending_timestamp,
    }
    for option, value in given.items():
        unknown = sorted(set(value.named) - known) if value is not None else []
        if unknown:
            raise OptionError(f"{option} names {', '.join(unknown)}, which this query does not read")


def check_not_past_the_end(
    client: PulsarClient,
    options: PulsarOptions,
    starts: Mapping[TopicPartition, Position],
    bounds: Mapping[TopicPartition, Bounds],
) -> None:
    """Refuse starts by the user that are past the end of the topic, except the one right after it.

    Raises:
        DataLossError: there are such starts, and `failOnDataLoss` is true.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    # The backlog at the end may not be for delivery: markers, and messages of open or aborted transactions.
    far = {tp: at for tp, at in starts.items() if at != LATEST and at > max(bounds[tp].first, bounds[tp].last)}
    for tp, stored in client.fetch_stored(far).items():
        if far[tp] > stored.next_entry:
            options.report_loss(past_the_end(tp, far[tp], stored))


def topics_of(client: PulsarClient, options: PulsarOptions) -> Sequence[str]:
    """Return the full names of the topics that a query reads now.

    Raises:
        MQSourceError: with `topicsPattern`, the cluster cannot be reached in time, or refuses.
    """
    return options.topic_names if options.topics_pattern is None else client.fetch_topics(options.topics_pattern)


def no_topic_matches(options: PulsarOptions) -> TopicNotFoundError:
    """Return the error for a pattern that matches no topic yet."""
    pattern = options.topics_pattern
    where, name = ("", "") if pattern is None else (" or ".join(pattern.namespaces), pattern.regex.pattern)
    return TopicNotFoundError(f"no topic of {where} matches topicsPattern {name}: check the pattern")


def resolve_positions(
    client: PulsarClient,
    which: str,
    wanted_at: Callable[[str], Position | int | None],
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, Position]:
    """Return the position of the options for each partition; look times up.

    Args:
        client: looks up times.
        which: `starting` or `ending`, the prefix of the options.
        wanted_at: a position or a publish time (ms) by topic-partition; None if the user named only others.
        partitions: all partitions of the query.

    Raises:
        OptionError: a partition has no value.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    wanted = {tp: wanted_at(str(tp)) for tp in partitions}
    missing = sorted(str(tp) for tp, value in wanted.items() if value is None)
    if missing:
        raise OptionError(
            f"{which}Offsets or {which}Timestamp must name every partition; missing: {', '.join(missing)}"
        )
    positions = {tp: value for tp, value in wanted.items() if isinstance(value, Position)}
    times = {tp: value for tp, value in wanted.items() if isinstance(value, int)}
    return positions | client.fetch_positions_at(times)


def split_ranges(client: PulsarClient, options: PulsarOptions, ranges: list[PulsarRange]) -> list[PulsarRange]:
    """Split ranges into at least `minPartitions` if possible, larger ones into more pieces.

    A cut is a position, which need not exist. Entries are counted within a ledger; the size of a ledger is known from
    `adminUrl`, or if the range begins and ends in the same one.

    Raises:
        MQSourceError: the admin API is needed, and cannot be reached in time, or refuses.
    """
    wanted = options.min_partitions or 0
    if wanted <= len(ranges):
        return ranges
    stretches = [stretches_of(client, options, r) for r in ranges]
    sizes = [sum(entries for _, _, entries in parts) for parts in stretches]
    total = sum(sizes) or 1
    pieces: list[PulsarRange] = []
    for r, parts, size in zip(ranges, stretches, sizes, strict=True):
        count = max(1, -(-wanted * size // total))
        bounds = [r.start, *(cut for cut in _cut(parts, count) if r.start < cut < r.end), r.end]
        pieces += [replace(r, start=start, end=end) for start, end in itertools.pairwise(bounds)]
    return pieces


def numbered(ranges: Sequence[PulsarRange]) -> list[PulsarRange]:
    """Return the ranges with their numbers, which are in the names of their consumers."""
    return [replace(r, number=number) for number, r in enumerate(ranges)]


def stretches_of(client: PulsarClient, options: PulsarOptions, r: PulsarRange) -> list[tuple[int, int, int]]:
    """Return the parts of a range with countable entries: (ledger, entry before the first, number of entries).

    With `adminUrl`, or within a ledger, these are all parts.

    Raises:
        MQSourceError: the admin API cannot be reached in time, or refuses.
    """
    start, end = r.start, r.end
    # If the range begins within an entry, that entry counts too.
    read = start.entry - (start.batch >= 0)
    if start.ledger == end.ledger:
        return [(start.ledger, read, end.entry - read)]
    if options.admin_url is None:
        return [(end.ledger, -1, end.entry + 1)]
    return [
        (ledger.ledger_id, before, upto - before)
        for ledger in client.fetch_ledgers(r.topic_partition)
        if start.ledger <= ledger.ledger_id <= end.ledger
        for before in [read if ledger.ledger_id == start.ledger else -1]
        for upto in [end.entry if ledger.ledger_id == end.ledger else ledger.entries - 1]
        if upto > before
    ]


def _cut(stretches: Sequence[tuple[int, int, int]], pieces: int) -> list[Position]:
    """Return the positions that cut stretches of entries into `pieces` parts of nearly equal numbers of entries.

    Example:
        >>> [str(p) for p in _cut([(7, -1, 10), (8, -1, 10)], 4)]
        ['7:4', '7:9', '8:4']
    """
    total = sum(entries for _, _, entries in stretches)
    cuts = []
    passed = 0
    wanted = iter(sorted({total * k // pieces for k in range(1, pieces)}))
    target = next(wanted, None)
    for ledger, before, entries in stretches:
        while target is not None and target <= passed + entries:
            if target > passed:
                cuts.append(Position(ledger, before + target - passed))
            target = next(wanted, None)
        passed += entries
    return cuts
