"""What is written and read everywhere: JSON records, random from a fixed seed."""

from __future__ import annotations

import random

SEED = 20_260
CITIES = ("Lisbon", "Nairobi", "Osaka", "Quito", "Turin", "Utrecht", "Warsaw", "Yerevan")


def make_values(value_bytes: int, count: int, rng: random.Random | None = None) -> list[bytes]:
    """JSON records as applications send them, cut or filled to size: half names and spaces, half random digits."""
    rng = random.Random(SEED) if rng is None else rng
    values = []
    for _ in range(count):
        text = bytearray()
        while len(text) < value_bytes:
            text += (
                f'{{"id":"{rng.getrandbits(64):016x}","city":"{rng.choice(CITIES)}",'
                f'"amount":{rng.uniform(0, 1000):.2f},"clicks":{rng.randrange(1000)},'
                f'"ok":{"true" if rng.random() < 0.5 else "false"}}}\n'
            ).encode()
        values.append(bytes(text[:value_bytes]))
    return values
