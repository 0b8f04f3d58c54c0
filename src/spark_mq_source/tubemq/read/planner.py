"""Plans of a query: topics and offsets in the options become bounded ranges, one a task."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from spark_mq_source.core.errors import MQSourceError, OptionError, TopicNotFoundError
from spark_mq_source.core.shared_options import LossOptions, OnCorrupt
from spark_mq_source.tubemq.client.bounds import Bounds, Partitions, fetch_bounds, owners_of_stores, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import ProducerMember
from spark_mq_source.tubemq.offsets import EARLIEST, INDEX_BYTES, LATEST, OffsetOption, TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.read.reader import TubeMQRange


def plan_batch(options: TubeMQOptions) -> list[TubeMQRange]:
    """Plan the ranges of one batch read, fixed now: reading them twice gives the same rows.

    Raises:
        OptionError: offsets that name unknown partitions, or leave some out.
        TopicNotFoundError: a topic is on no broker.
        DataLossError: messages after the start have been deleted, and `failOnDataLoss` is true.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    with TubeMQClient(options) as client:
        try:
            return _plan(client, options)
        except MQSourceError as error:
            raise error.within("tubemq: planning") from error


def check_dead_letter_topic(options: TubeMQOptions) -> None:
    """Check, before the first dead letter, that brokers accept messages for its topic.

    Raises:
        TopicNotFoundError: it is on no broker, or takes no messages on any.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    if options.on_corrupt is not OnCorrupt.DEAD_LETTER:
        return
    topic = options.dead_letter_topic or ""
    with TubeMQClient(options) as client:
        try:
            client.enter(ProducerMember(client.masters, [topic])).close()
        except TopicNotFoundError as error:
            place = f"tubemq: deadLetterTopic {topic} (an administrator adds topics to brokers)"
            raise error.within(place) from error
        except MQSourceError as error:
            raise error.within(f"tubemq: deadLetterTopic {topic}") from error


def _plan(client: TubeMQClient, options: TubeMQOptions) -> list[TubeMQRange]:
    client.wait_until_settled()
    partitions = partitions_of(client.fetch_partitions())
    starts = options.starting_offsets or OffsetOption(everywhere=EARLIEST)
    ends = options.ending_offsets or OffsetOption(everywhere=LATEST)
    check_named(options, partitions)
    bounds = fetch_bounds(client, options, partitions)
    spans = {}
    for tp in sorted(partitions):
        start = resolve_offset(starts, tp, bounds[tp], options)
        end = min(ends.at(tp) or 0, bounds[tp].last)
        if start < end:
            spans[tp] = start, end
    return ranges_of(client, options, partitions, spans, owners=owners_of_stores(partitions))


def ranges_of(
    client: TubeMQClient,
    options: TubeMQOptions,
    partitions: Partitions,
    spans: Mapping[TopicPartition, tuple[int, int]],
    *,
    owners: Collection[TopicPartition],
) -> list[TubeMQRange]:
    """Return the tasks that read these spans, each from a start to before an end, as `split_ranges` splits them.

    Args:
        client: has the authorization and the flow rules for the tasks.
        options: the query's options.
        partitions: the locations of the partitions.
        spans: what is read of each partition.
        owners: the partitions that are known to be the only ones of their stores.
    """
    given, rules = client.authorization.given, client.flow_rules
    ranges = [
        TubeMQRange(tp, partitions[tp].broker, start, end, given, rules, owns_store=tp in owners)
        for tp, (start, end) in sorted(spans.items())
    ]
    return split_ranges(options, ranges)


def split_ranges(options: TubeMQOptions, ranges: Sequence[TubeMQRange]) -> list[TubeMQRange]:
    """Split ranges by `maxRecordsPerPartition`, then into at least `minPartitions` if the index has so many messages.

    Tasks read one partition at once because each reads in a separate group and connection. A cut is between
    two messages of the index; one of them may be another partition's of the same store, which makes a piece shorter.
    """
    if options.max_records_per_partition is not None:
        most = options.max_records_per_partition * INDEX_BYTES
        ranges = [piece for r in ranges for piece in _cut(r, -(-(r.end - r.start) // most))]
    wanted = options.min_partitions or 0
    if wanted <= len(ranges):
        return list(ranges)
    total = sum(r.end - r.start for r in ranges)
    return [piece for r in ranges for piece in _cut(r, -(-wanted * (r.end - r.start) // total))]


def _cut(r: TubeMQRange, pieces: int) -> Iterator[TubeMQRange]:
    """Cut a range into `pieces` of nearly the same number of messages, or into one for each message.

    Example:
        >>> from spark_mq_source.tubemq.protocol.addresses import Broker
        >>> whole = TubeMQRange(TopicPartition("flights", 1, 0), Broker(1, "host", 8123), 28, 28 + 5 * 28)
        >>> [str(piece) for piece in _cut(whole, 2)]
        ['1:flights:0 [28, 84)', '1:flights:0 [84, 168)']
    """
    messages = (r.end - r.start) // INDEX_BYTES
    pieces = max(1, min(pieces, messages))
    cuts = [r.start + messages * k // pieces * INDEX_BYTES for k in range(pieces)]
    for start, end in itertools.pairwise([*cuts, r.end]):
        yield dataclasses.replace(r, start=start, end=end, readers=r.readers * pieces)


def check_named(options: TubeMQOptions, partitions: Iterable[TopicPartition], *, needs_all: bool = True) -> None:
    """Refuse offsets that name partitions which are not read (most likely misspelt), or leave out one that is read.

    Args:
        options: the query's options.
        partitions: the partitions that are read.
        needs_all: whether all of them must have an offset.

    Raises:
        OptionError: names them.
    """
    known = set(partitions)
    given = {"startingOffsets": options.starting_offsets, "endingOffsets": options.ending_offsets}
    for option, wanted in given.items():
        if wanted is None:
            continue
        topics = wanted.topics.keys() - {tp.topic for tp in known}
        unknown = sorted({str(tp) for tp in wanted.partitions.keys() - known} | topics)
        if unknown:
            raise OptionError(f"{option} names {', '.join(unknown)}, which this query does not read")
        missing = sorted(str(tp) for tp in known if wanted.at(tp) is None)
        if missing and needs_all:
            raise OptionError(f"{option} must name every partition or its topic; missing: {', '.join(missing)}")


def resolve_offset(wanted: OffsetOption, tp: TopicPartition, bounds: Bounds, options: LossOptions) -> int:
    """Return the offset from which the user wants to read a partition, within its bounds.

    Raises:
        DataLossError: the user named an offset that does not exist, and `failOnDataLoss` is true.
    """
    start = wanted.at(tp)
    if start is None or start == EARLIEST:
        return bounds.first
    if start == LATEST:
        return bounds.last
    nearest = min(max(start, bounds.first), bounds.last)
    if nearest != start:
        options.report_loss(
            f"tubemq: {tp}: the broker has offsets from {bounds.first} to {bounds.last}, but not {start}; start at an "
            f"existing offset, or set failOnDataLoss=false to start at the nearest one"
        )
    return nearest
