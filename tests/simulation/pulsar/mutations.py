"""Ways to break the Pulsar side of the package, to prove that the exploration finds them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.mutations import Mutation

MUTATIONS: Sequence[Mutation] = (
    Mutation(
        "A1",
        "only the first 500 transactions of a job are ended, and the rest is not reported",
        (
            (
                "pulsar/write/transactions.py",
                "for start in range(0, len(asked), MAX_ENDS_IN_FLIGHT):",
                "for start in range(0, min(1, len(asked))):",
            ),
        ),
    ),
    Mutation(
        "A2",
        "a change to the first entry of another ledger is not taken for a gap",
        (
            (
                "pulsar/read/reader.py",
                "                    self._check_gap(consumer, Position(ledger, entry), key)",
                "                    entry_id and self._check_gap(consumer, Position(ledger, entry), key)",
            ),
        ),
    ),
    Mutation(
        "A3",
        "a transaction sends entries of unknown outcome again",
        (
            (
                "pulsar/write/writer.py",
                "sends_once = self._options.delivery_guarantee is DeliveryGuarantee.TRANSACTION",
                "sends_once = False",
            ),
        ),
    ),
    Mutation(
        "A4",
        "exactly-once sends entries behind one that is not stored yet",
        (
            (
                "pulsar/write/writer.py",
                "if producer.numbers is not None and producer.pending:",
                "if producer.numbers is None and producer.pending and False:",
            ),
        ),
    ),
    Mutation(
        "A5",
        "a position past the end of the topic is nothing new",
        (
            (
                "pulsar/read/stream.py",
                "far = {tp: at for tp, at in begin.items() if at > max(bounds[tp].first, bounds[tp].last)}",
                "far: dict[TopicPartition, Position] = {}",
            ),
            (
                "pulsar/read/stream.py",
                "for tp in [tp for tp, at in starts.items() if at > finish[tp]]:",
                "for tp in []:",
            ),
        ),
    ),
    Mutation(
        "A6",
        "chunk 0 at another position does not begin a message anew",
        (("pulsar/payload/messages.py", "if pending is None or pending.start != position:", "if pending is None:"),),
    ),
    Mutation(
        "2.10-ledger-end",
        "limits pass the end of a closed ledger on 2.10 for ever, and no guard notices",
        (
            ("pulsar/read/limits.py", "if cursor.entry == END_OF_LEDGER - 1:", "if False:"),
            (
                "pulsar/read/stream.py",
                "ends = self._guard.check(starts, ends, self._limiter.limit(starts, ends))",
                "ends = self._limiter.limit(starts, ends)",
            ),
        ),
    ),
    Mutation(
        "end-off-by-one",
        "a range ends before its last entry",
        (("pulsar/read/reader.py", "if key > end_key:", "if key >= end_key:"),),
    ),
    Mutation(
        "resume-from-start",
        "after a lost connection a range begins again where it began",
        (("pulsar/read/reader.py", "self._done = Position(*key)", "self._done = self._done"),),
    ),
    Mutation(
        "start-included",
        "the entry at which a range starts belongs to it",
        (("pulsar/read/reader.py", "emit = key == start_key and not whole", "emit = key == start_key"),),
    ),
    Mutation(
        "cursor-trusted",
        "a cursor that the broker has moved past what was received means nothing",
        (("pulsar/read/reader.py", "        if cursor <= received:\n", "        if cursor:\n"),),
    ),
    Mutation(
        "ambiguous-commit",
        "a transaction whose END got no answer, and is not there any more, counts as committed",
        (("pulsar/write/transactions.py", "error.is_ambiguous and _is_visible(client, one)", "error.is_ambiguous"),),
    ),
    Mutation(
        "receipt-assumed",
        "entries whose connection broke count as stored",
        (
            (
                "pulsar/write/writer.py",
                "        for entry in unsent:\n            self._send_entry(producer, entry)\n",
                "        producer.pending.clear()\n        producer.pending_bytes = 0\n",
            ),
        ),
    ),
    Mutation(
        "let-go-early",
        "the durable subscription lets go of entries that were not read yet",
        (
            (
                "pulsar/read/stream.py",
                "Position(at.ledger, max(at.entry - 1, -1))",
                "Position(at.ledger + 1, 5)",
            ),
        ),
    ),
    Mutation(
        "unfenced-abort",
        "an attempt aborts its transaction while its producers are open",
        (
            (
                "pulsar/write/writer.py",
                "                if producer.session is not None and producer.pending:\n"
                "                    # Queued after pending entries, CLOSE_PRODUCER may arrive too late.\n"
                "                    producer.session.close()\n"
                "            for producer in self._open:\n",
                "                transaction.abort()\n",
            ),
        ),
    ),
)
