"""Time zones on a machine without a database of them."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.time_zones import time_zone
from spark_mq_source.tubemq.payload.layout import message_times
from spark_mq_source.tubemq.write.writer import RowEncoder
from spark_mq_source.values.inlong.messages import records_of
from tests.oracles.inlong import inlong_msg

MINUTE = 1_700_000_040_000_000
TEXT = "202311142214"


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in {"tzdata", *(name for name in sys.modules if name.startswith("tzdata."))}:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath([])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


def test_times_in_utc_need_no_database() -> None:
    assert message_times("UTC")(int(TEXT)) == MINUTE
    times = pa.array([MINUTE], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"value": [b"v"], "message_type": ["a"], "message_time": times})
    assert [row[-1] for row in RowEncoder("t").encode(batch)] == [TEXT]
    ((head, _),) = records_of(inlong_msg(1, [(f"t={TEXT}", [b"a"])]), {}, "UTC")
    assert head.time_us == MINUTE


def test_the_error_for_another_zone_names_the_package() -> None:
    with pytest.raises(OptionError, match=r"unknown time zone 'Asia/Shanghai' on this machine: .*pip install tzdata"):
        time_zone("Asia/Shanghai")
