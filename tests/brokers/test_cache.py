"""The cache of downloads."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from brokers.cache import exclusive


def test_the_time_of_a_download_counts_for_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MQ_SOURCE_CACHE", str(tmp_path))
    limit_of_this_test = signal.setitimer(signal.ITIMER_REAL, 1000)[0]
    try:
        with exclusive("downloaded"):
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, limit_of_this_test)
