"""Ways to break the guarantees of `nsq`, one at a time, to prove that the exploration finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutations import Mutation

MUTATIONS: Final[Sequence[Mutation]] = (
    Mutation(
        "A7",
        "a file of walDir is used without a look at its size and checksum",
        [
            ("nsq/read/wal.py", "if len(data) != slot.bytes:", "if False:"),
            ("nsq/read/wal.py", "if (found := crc32c(data)) != slot.crc32c:", "if (found := 0) != 0:"),
        ],
    ),
    Mutation(
        "A8",
        "the messages that were finished last are not remembered from batch to batch",
        [("nsq/read/reader.py", "RecentIds(task.recent.encode(), ", 'RecentIds(b"", ')],
    ),
    Mutation(
        "fin-before-slot",
        "messages are finished before their rows are written down",
        [
            (
                "nsq/read/reader.py",
                "        ids = keeper.held\n",
                "        ids = keeper.held\n        consumer.fin(ids)\n",
            )
        ],
    ),
    Mutation(
        "unfinished-forgotten",
        "messages whose FIN may not be through are not named in the next plan",
        [("nsq/read/stream.py", "found.setdefault(task.nsqd.name, {}).update(dict.fromkeys(unfinished, 0.0))", "pass")],
    ),
    Mutation(
        "slot-as-it-was",
        "an attempt whose slot was taken tries the next one with the same rows",
        [
            (
                "nsq/read/reader.py",
                "batch = self._without(batch, self._log.slots[slots_seen:])",
                "batch = self._without(batch, [])",
            )
        ],
    ),
    Mutation(
        "note-in-parts",
        "the note that FINs are through is not written whole or not at all",
        [("nsq/read/wal.py", 'self._store.create(f"{self._folder}/{self.attempt}{_FIN}"',
          'self._store.write(f"{self._folder}/{self.attempt}{_FIN}"')],
    ),
    Mutation(
        "written-unasked",
        "what an nsqd had not answered when its connection ended is not sent again",
        [("nsq/write/writer.py", "self._unplaced.extend(target.pending)", "pass")],
    ),
)  # fmt: skip
