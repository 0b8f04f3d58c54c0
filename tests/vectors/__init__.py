"""Bytes recorded from real brokers and official clients; each folder's README names their versions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PULSAR_SPARK_CHECKPOINT = FOLDER / "pulsar" / "pulsar-spark-checkpoint"
OFFLOADED_LEDGER = FOLDER / "pulsar" / "offloaded" / "b61e6f2f-3d15-49a7-8ba3-ec32066fc268-ledger-3"


@dataclass(frozen=True)
class RecordedFrame:
    """One frame, as sent.

    `kind` is the broker's name of the command, `text` its representation in protobuf's text format when recorded.
    """

    case: str
    from_broker: bool
    kind: str
    data: bytes
    text: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.case}".replace(" ", "_")


def pulsar_frames() -> list[RecordedFrame]:
    """Return every recorded Pulsar frame, in the order of the recordings."""
    frames = []
    for path in sorted((FOLDER / "pulsar").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            data = bytes.fromhex(item["hex"])
            frames.append(RecordedFrame(item["name"], item["dir"] == "b2c", item["type"], data, item["text"]))
    return frames


@dataclass(frozen=True)
class RecordedCall:
    """One call of TubeMQ and its answer, as whole frames; `text` is protobuf's text of both, joined by ` => `."""

    case: str
    request: bytes
    answer: bytes
    text: str

    def __str__(self) -> str:
        return self.case.replace(" ", "_")


def tubemq_calls(name: str = "server-2.4.0.jsonl") -> list[RecordedCall]:
    """Return every TubeMQ call of one recording."""
    lines = (FOLDER / "tubemq" / name).read_text(encoding="utf-8").splitlines()
    items = [json.loads(line) for line in lines]
    return [
        RecordedCall(item["name"], bytes.fromhex(item["send"]), bytes.fromhex(item["recv"]), item["decoded"])
        for item in items
    ]
