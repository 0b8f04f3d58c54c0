"""Recordings of nsqd 1.3.0: the bytes that clients sent, and the frames that nsqd answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.vectors import FOLDER

Event = Mapping[str, Any]

CASES: Mapping[str, Sequence[Event]] = {
    case["case"]: case["events"]
    for case in map(json.loads, (FOLDER / "nsq" / "nsqd-1.3.0.jsonl").read_text(encoding="utf-8").splitlines())
}


def sent(case: str, number: int) -> bytes:
    """Return the `number`-th piece that the client sent; piece 0 is the magic."""
    return bytes.fromhex([event["send"] for event in CASES[case] if "send" in event][number])


def received(case: str, number: int) -> bytes:
    """Return the `number`-th frame that nsqd sent."""
    return bytes.fromhex([event["recv"] for event in CASES[case] if "recv" in event][number])


FROM_NSQD = [bytes.fromhex(event["recv"]) for events in CASES.values() for event in events if "recv" in event]
