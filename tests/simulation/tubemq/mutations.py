"""Ways to break the guarantees of `tubemq`, one at a time, to prove that the exploration finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutations import Mutation

MUTATIONS: Final[Sequence[Mutation]] = (
    Mutation(
        "end-passed",
        "a fetch that goes past the end of a range is not cut there",
        [("tubemq/read/reader.py", "if cursor.position > self._end:", "if cursor.position > self._end + 1000:")],
    ),
    Mutation(
        "one-client-id",
        "all attempts at all tasks have the same client id: a second register moves the cursor of the first",
        [
            (
                "tubemq/client/reading_groups.py",
                "consumer = client.consumer(partition, client_id=unique_client_id(group), group=group)",
                'consumer = client.consumer(partition, client_id=f"{group}_client", group=group)',
            )
        ],
    ),
    Mutation(
        "resume-from-start",
        "after a lost connection a range begins again where it began",
        [
            (
                "tubemq/read/reader.py",
                "self._partition, self._done, priority",
                "self._partition, self._task.start, priority",
            )
        ],
    ),
    Mutation(
        "done-never",
        "the end of a rebalance event is never said to the master",
        [
            (
                "tubemq/client/members.py",
                "            self._done.append(self._answer(event))\n",
                "            self._answer(event)\n",
            )
        ],
    ),
    Mutation(
        "left-at-begin",
        "a partition is left where the last trigger began, though its tasks read it to the end",
        [
            (
                "tubemq/read/stream.py",
                "self._held[tp].position = max(self._held[tp].position, end)",
                "self._held[tp].position = max(self._held[tp].position, 0)",
            )
        ],
    ),
    Mutation(
        "B11",
        "a partition may be left between `latest` and `ranges`, at the trigger's begin",
        [
            (
                "tubemq/read/stream.py",
                "            self._pending = frozenset(ends)\n",
                "            self._pending = frozenset()\n",
            )
        ],
    ),
    Mutation(
        "receipt-assumed",
        "a message whose connection broke counts as stored",
        [
            (
                "tubemq/write/writer.py",
                "            if type(answer) is not commands.SendMessageResponse or answer.err_code != SUCCESS:",
                "            if type(answer) is commands.SendMessageResponse and answer.err_code != SUCCESS:",
            )
        ],
    ),
    Mutation(
        "disk-of-another",
        "with waitForDisk, what a killed broker has lost counts as on the disk when others reach its offsets",
        [("tubemq/write/writer.py", "            if link.session.closed:\n", "            if False:\n")],
    ),
    Mutation(
        "back-where-it-was",
        "a partition that comes back is read from where this query was, though another member has read on",
        [
            (
                "tubemq/read/stream.py",
                "max(known.get(tp, 0), self._held[tp].position)",
                "known.get(tp, self._held[tp].position)",
            )
        ],
        scenario="group_read",
    ),
    Mutation(
        "last-unproven",
        "of several fetches that found nothing only the last is checked for messages that were removed",
        [("tubemq/read/reader.py", "self._prove_kept(unproven[0])", "self._prove_kept(unproven[-1])")],
        scenario="batch_read_removal",
    ),
    Mutation(
        "letters-unconfirmed",
        "a batch is passed on before the broker has answered for its dead letters",
        [("core/dead_letters.py", "            self._writer.flush()\n", "")],
    ),
)
