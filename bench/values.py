"""Values to write and read, random from a fixed seed: JSON records everywhere, and flights with a schema."""

from __future__ import annotations

import random
from typing import Any

SEED = 20_260
CITIES = ("Lisbon", "Nairobi", "Osaka", "Quito", "Turin", "Utrecht", "Warsaw", "Yerevan")


def make_values(value_bytes: int, count: int, rng: random.Random | None = None) -> list[bytes]:
    """Return JSON records as of applications, cut or padded to size: half names and spaces, half random digits."""
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


def make_flights(count: int) -> list[dict[str, Any]]:
    """Return flights with twelve fields; a tenth of the values that may be null are."""
    rng = random.Random(SEED)
    return [
        {
            "year": 2013,
            "month": rng.randint(1, 12),
            "day": rng.randint(1, 28),
            "dep_delay": None if rng.random() < 0.1 else float(rng.randint(-20, 300)),
            "arr_delay": None if rng.random() < 0.1 else float(rng.randint(-60, 300)),
            "carrier": rng.choice(("UA", "B6", "EV", "DL")),
            "flight": rng.randint(1, 8500),
            "tailnum": None if rng.random() < 0.1 else f"N{rng.randint(10_000, 99_999)}",
            "origin": rng.choice(("EWR", "JFK", "LGA")),
            "dest": rng.choice(CITIES)[:3].upper(),
            "distance": float(rng.randint(80, 4983)),
            "time_hour": 1_357_020_000_000 + 60_000 * number,
        }
        for number in range(count)
    ]
