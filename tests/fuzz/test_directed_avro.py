from __future__ import annotations

from random import randrange

import pytest

from tests.fuzz import directed_avro

pytest.importorskip("spark_mq_source.values.avro._decode_native", exc_type=ImportError)


def test_random_seeds_find_nothing():
    first = randrange(2**32)
    print(f"seeds from {first}")
    assert sum(directed_avro.run(first + at) for at in range(12)) > 1_000
