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
            ("net/write_ahead.py", "if len(data) != slot.bytes:", "if False:"),
            ("net/write_ahead.py", "if (found := crc32c(data)) != slot.crc32c:", "if (found := 0) != 0:"),
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
                "        self.held += self.taken\n",
                "        self.held += self.taken\n        self.consumer.fin(self.held)\n",
            )
        ],
    ),
    Mutation(
        "unfinished-forgotten",
        "messages whose FIN may not be through are not named in the next plan",
        [("net/queue_stream.py",
          "found.setdefault(name, {}).update(dict.fromkeys(self._compact(unconfirmed), 0.0))", "pass")],
    ),
    Mutation(
        "slot-as-it-was",
        "an attempt whose slot was taken tries the next one with the same rows",
        [
            (
                "net/queue_task.py",
                "batch = self._without(batch, self._log.slots[slots_seen:])",
                "batch = self._without(batch, [])",
            )
        ],
    ),
    Mutation(
        "note-in-parts",
        "the note that FINs are through is not written whole or not at all",
        [("net/write_ahead.py", 'self._store.create(f"{self._folder}/{self.attempt}{_ACKNOWLEDGED}"',
          'self._store.write(f"{self._folder}/{self.attempt}{_ACKNOWLEDGED}"')],
    ),
    Mutation(
        "letters-unconfirmed",
        "a batch is passed on before nsqd has answered for its dead letters",
        [("core/dead_letters.py", "            self._writer.flush()\n", "")],
    ),
    Mutation(
        "written-unasked",
        "what an nsqd had not answered when its connection ended is not sent again",
        [("nsq/write/writer.py", "self._unplaced.extend(target.pending)", "pass")],
    ),
)  # fmt: skip
