"""Tiered storage in the simulated world: offloaded ledgers, the admin API's description of them, and faults.

From `ManagedLedgerImpl` and `BlobStoreManagedLedgerOffloader` of 4.0.8, and from observations of it: `internal-info`
names the objects of a ledger before they are written, the statistics report when they are complete, and a broker
removes them with the ledger. Brokers keep their own copy on bookies, so faults of an object do not affect them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any
from urllib.parse import unquote

from spark_mq_source.core.errors import MQSourceError, StorageError, UnsupportedFeatureError
from spark_mq_source.pulsar.read import offloaded
from tests.simulation import files, http, queues
from tests.simulation.explore import Fault
from tests.simulation.pulsar.broker import Cluster
from tests.unit.pulsar.protocol.test_offloaded import objects

PART_BYTES = 300
"""The size of a request in the simulated world, so that entries cross parts as they do in large ledgers."""

ADMIN = "broker-0:8080"
"""The admin address on a host of `serviceUrl`, to which the token may be sent."""


def store_faults(dice: Random, seconds: float) -> Iterator[Fault]:
    """Yield a few offloads and faults of the store, or none.

    - `offload`: number of a topic-partition, seconds until the objects are complete.
    - `object`: the object, its fault, the place of the fault.
    - `busy`: seconds for which the store refuses requests.
    """
    for _ in range(dice.choice((0, 1, 2, 4))):
        yield Fault("offload", at=round(dice.random() * seconds, 3), args=(dice.randrange(3), dice.choice((0.0, 0.5))))
    for _ in range(dice.choice((0, 0, 1, 2))):
        how = dice.choice(("gone", "gone", "cut", "version", "flip", "flip"))
        yield Fault("object", at=round(dice.random() * seconds, 3), args=(dice.random(), how, dice.random()))
    for _ in range(dice.choice((0, 0, 0, 1))):
        yield Fault("busy", at=round(dice.random() * seconds, 3), args=(dice.choice((0.5, 20.0, 90.0)),))


class Offloader:
    """The offloaded ledgers of a cluster.

    Args:
        cluster: has the topics.
        blocks: the number of entries of a block.
    """

    def __init__(self, cluster: Cluster, blocks: int) -> None:
        queues.install()
        offloaded.PART_BYTES = PART_BYTES  # type: ignore[misc] # as RECEIVE_BYTES of the stand-ins
        self._cluster = cluster
        self._blocks = blocks
        self._named: dict[int, str] = {}
        self._complete: set[int] = set()
        self._store = files.objects()
        http.serve(ADMIN, self._answer)

    def options(self, how: str) -> dict[str, str]:
        """Return the options of a read from the store."""
        return {"readOffloaded": how, "offloadStorage": files.SCHEME, "adminUrl": f"http://{ADMIN}"}

    def offload(self, name: str, seconds: float = 0.0) -> None:
        """Run `pulsar-admin topics offload` for every closed ledger; its objects are complete after this time."""
        ledger = self._cluster.load(name).ledger
        ledger.on_removed = self._remove
        for number, count in ledger.ledgers.items():
            if not count or number == ledger.current or number in self._named:
                continue
            path = f"{uuid.UUID(int=number, version=4)}-ledger-{number}"
            self._named[number] = path
            # Includes uncounted entries (seen on 4.0.8).
            bodies = [entry.body for position, entry in ledger.entries.items() if position[0] == number]
            blocks = [bodies[at : at + self._blocks] for at in range(0, len(bodies), self._blocks)]

            def complete(number: int = number, path: str = path, blocks: Any = blocks) -> None:
                if number in self._named:
                    self._store.files[path], self._store.files[f"{path}-index"] = objects(blocks, padding=6)
                    self._complete.add(number)

            if seconds:
                self._cluster.world.after(seconds, complete)
            else:
                complete()

    def _remove(self, number: int) -> None:
        path = self._named.pop(number, None)
        self._complete.discard(number)
        for end in ("", "-index"):
            self._store.files.pop(f"{path}{end}", None)

    def fail(self, fault: Fault) -> None:
        """Apply a fault of `store_faults`."""
        if fault.kind == "offload":
            names = [name for name in self._cluster.storage if "/system/" not in name]
            self.offload(names[fault.args[0] % len(names)], fault.args[1])
        elif fault.kind == "busy":
            self._store.busy_until = self._cluster.world.now + fault.args[0]
        elif self._store.files:
            part, how, where = fault.args
            path = sorted(self._store.files)[int(part * len(self._store.files))]
            data = self._store.files[path]
            at = int(where * len(data))
            changed = {
                "cut": data[:at],
                "version": b"\x26\xa6\x6d\x32" + data[4:],
                "flip": data[:at] + bytes(byte ^ 4 for byte in data[at : at + 1]) + data[at + 1 :],
            }
            self._cluster.world.note(f"object {path}: {how} at {at}")
            if how == "gone":
                del self._store.files[path]
            else:
                self._store.files[path] = changed[how]

    def _answer(self, method: str, path: str, _: Mapping[str, str]) -> http.Answer:
        *name, what = unquote(path.removeprefix("/admin/v2/")).split("/", 4)
        domain, tenant, namespace, topic = (*name, "", "", "")[:4]
        ledgers = self._cluster.storage.get(f"{domain}://{tenant}/{namespace}/{topic}")
        if method != "GET" or ledgers is None or what not in {"internalStats", "internal-info"}:
            return 404, {"reason": "there is no such topic, or it has no policies"}
        current = ledgers.current
        found: list[dict[str, Any]] = [
            {"ledgerId": number, "entries": count, "size": 100 * count, "offloaded": number in self._complete}
            for number, count in {**ledgers.ledgers, current: 0}.items()
        ]
        if what == "internal-info":
            return 200, {
                "ledgers": [
                    one | {"offloadedContextUuid": str(uuid.UUID(int=one["ledgerId"], version=4))}
                    if one["ledgerId"] in self._named
                    else one
                    for one in found
                ]
            }
        count = ledgers.ledgers[current]
        return 200, {"ledgers": found, "currentLedgerEntries": count, "currentLedgerSize": 100 * count}


def names_the_ledger(error: MQSourceError, how: str) -> bool:
    """Return whether an error of `readOffloaded=always` names the ledger that is missing or incomplete in the store.

    Or the start, if its ledger was deleted while the read was planned.
    """
    text = str(error)
    if how != "always" or not isinstance(error, StorageError | UnsupportedFeatureError):
        return False
    return any(
        words in text for words in ("ledger ", "-ledger-", "belongs to a transaction", "the topic has no position")
    )
