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
                "for start in range(0, len(asked), MAX_REQUESTS_IN_FLIGHT):",
                "for start in range(0, min(1, len(asked))):",
            ),
        ),
        scenario="commits",
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
        scenario="batch_read_removal",
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
        scenario="write_stream_exactly_once",
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
                "ahead = {tp: at for tp, at in starts.items() if at > finish[tp]}",
                "ahead: dict[TopicPartition, Position] = {}",
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
        scenario="commits",
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
        "ended-early",
        "a query ends when one of its topics is terminated and read",
        (
            (
                "pulsar/read/ends.py",
                "all(consumer.has_ended for _, consumer in self._waiting.values())",
                "any(consumer.has_ended for _, consumer in self._waiting.values())",
            ),
        ),
        scenario="termination",
    ),
    Mutation(
        "unfenced-abort",
        "an attempt aborts its transaction without another connection that takes its lost producers' names",
        (
            (
                "pulsar/write/writer.py",
                "                if producer.session is None or producer.session.closed:\n"
                "                    # Entries still in transit",
                "                if False:\n                    # Entries still in transit",
            ),
        ),
        scenario="write_chunks_transaction",
    ),
    Mutation(
        "letters-unconfirmed",
        "a batch is passed on before the broker has answered for its dead letters",
        (("core/dead_letters.py", "            self._writer.flush()\n", ""),),
        scenario="dead_letters",
    ),
    Mutation(
        "queue-acked-first",
        "entries of a queue are acknowledged before they are written down",
        (
            (
                "pulsar/read/queue_reader.py",
                "        return log_batch(messages, counts)\n",
                "        self._send_acknowledgement([(one.ledger_id, one.entry_id) for one in messages])\n"
                "        return log_batch(messages, counts)\n",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "queue-forgetful",
        "entries of a queue that were acknowledged in earlier batches are not remembered",
        (
            (
                "pulsar/read/queue_reader.py",
                "EntryRanges([*task.duplicates, task.recent])",
                "EntryRanges(task.duplicates)",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "queue-unfinished-forgotten",
        "entries of a queue whose acknowledgement may not be through are not named in the next plan",
        (
            (
                "net/queue_stream.py",
                "found.setdefault(name, {}).update(dict.fromkeys(self._compact(unconfirmed), 0.0))",
                "pass",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "queue-put-back-acked",
        "entries of a queue that do not fit a trigger's limit are acknowledged all the same",
        (
            (
                "pulsar/read/queue_reader.py",
                "        # What does not fit is given back when the consumer is closed.\n",
                "        self._send_acknowledgement([(one.ledger_id, one.entry_id) for one in self._received])\n",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "queue-no-permits-left",
        "a consumer of a queue is closed without permits while it has a part of a message in chunks",
        (
            (
                "pulsar/read/queue_reader.py",
                "if self._is_stored and self._options.subscription_kind in SHARED_TYPES:",
                "if False:",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "retry-acked-first",
        "messages are acknowledged before the retry topic has them",
        (
            (
                "pulsar/read/queue_reader.py",
                "            if is_given_back:\n                letters.put_off(kept)\n"
                "            inflow.acknowledge()\n",
                "            inflow.acknowledge()\n"
                "            if is_given_back:\n                letters.put_off(kept)\n",
            ),
        ),
        scenario="queue_retry",
    ),
    Mutation(
        "queue-chunk-acked",
        "the chunks of a message are acknowledged as they come, before it is complete",
        (
            (
                "pulsar/read/queue_reader.py",
                "                group = self._chunks.add(message)\n",
                "                group = self._chunks.add(message)\n"
                "                self._send_acknowledgement([entry])\n",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "queue-chunks-one-by-one",
        "chunks that come again are acknowledged one by one, and not together",
        (
            (
                "pulsar/read/queue_reader.py",
                "repeated += self._chunks.add_known(message) if not count else [entry]",
                "repeated += [entry]",
            ),
        ),
        scenario="queue_stream",
    ),
    Mutation(
        "repeat-start-included",
        "batch 0, done over, begins behind the first entry though the topic was empty when it began",
        (("pulsar/read/stream.py", "if at > held[tp].first}", "if at >= held[tp].first}"),),
        scenario="stream_subscription",
    ),
    Mutation(
        "send-after-timeout",
        "a transaction sends entries though its timeout is near",
        (
            (
                "pulsar/write/writer.py",
                "        if self._transaction is not None:\n            self._transaction.check_time()\n        entry.",
                "        entry.",
            ),
        ),
        scenario="write_transaction",
    ),
    Mutation(
        "following-forgotten",
        "what follows a ledger is not noted where a limited trigger ends with it",
        (("pulsar/read/limits.py", "if entry + left < last:", "if entry + left <= last:"),),
        scenario="stream_trimmed",
    ),
    Mutation(
        "pin-left-ahead",
        "a durable subscription that is ahead of the query's start stays there",
        (
            (
                "pulsar/read/stream.py",
                "if tp in firsts else cursors[tp] != at)]",
                "if tp in firsts else cursors[tp] < at)]",
            ),
        ),
        scenario="stream_subscription",
    ),
    Mutation(
        "visible-neighbour",
        "any entry behind that of a transaction proves that it was committed",
        (
            (
                "pulsar/write/transactions.py",
                "return found is not None and (found.ledger_id, found.entry_id) == (position.ledger, position.entry)",
                "return found is not None",
            ),
        ),
        scenario="commits",
    ),
    Mutation(
        "cursor-moved-again",
        "a cursor that the broker moves again, no farther, means nothing though entries came in between",
        (
            (
                "pulsar/read/reader.py",
                "if received != consumer.opened.first or cursor > self._moved_to:",
                "if received != consumer.opened.first and cursor > self._moved_to:",
            ),
        ),
        scenario="batch_read_removal",
    ),
    Mutation(
        "following-at-once",
        "what follows the position read last is taken for what was not noted before",
        (("pulsar/read/stream.py", "first >= following)", "first > following)"),),
        test="tests/unit/pulsar/read/test_stream.py",
    ),
    Mutation(
        "queue-peek-twice",
        "a read that leaves its messages there forgets what it has handed on when it loses its connection",
        (("pulsar/read/queue_reader.py", "        self._here.add(self._held)\n", ""),),
        scenario="queue_peek",
    ),
    Mutation(
        "queue-unanswered-forgotten",
        "acknowledgements of a queue that no broker has answered are not sent again",
        (
            (
                "pulsar/read/queue_reader.py",
                "                failure = error\n                self._unconfirmed += entries\n",
                "                failure = error\n",
            ),
        ),
        scenario="queue_drain",
    ),
    Mutation(
        "queue-unanswered-dropped",
        "acknowledgements of a queue that were on their way when a consumer was lost are not sent again",
        (
            (
                "pulsar/read/queue_reader.py",
                "            if not acknowledgement.done() or acknowledgement.exception() is not None:\n"
                "                self._unconfirmed += entries\n",
                "            pass\n",
            ),
        ),
        scenario="queue_drain",
    ),
    Mutation(
        "queue-twice-at-once",
        "an entry that comes twice in one burst is read twice",
        (("pulsar/read/queue_reader.py", "one[2] < other[1] for", "one[2] <= other[1] for"),),
        test="tests/unit/pulsar/read/test_queue_reader.py",
    ),
)
