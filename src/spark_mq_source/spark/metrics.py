"""The progress of streaming queries as Prometheus metrics, by prometheus-client (the extra `metrics`)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.errors import UnsupportedFeatureError
from spark_mq_source.spark.progress import ProgressListener, TriggerProgress

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

__all__ = ["MAX_QUERIES", "MAX_TOPICS", "MetricsListener"]

MAX_QUERIES: Final = 100
"""The maximum number of queries that are exported; the one that has been silent longest makes room for a new one."""

MAX_TOPICS: Final = 100
"""The maximum number of topics of a query with a lag of their own; the sum of the smaller ones is that of `other`."""

_COUNTERS: Final = {
    "triggers": "Triggers of the query.",
    "rows": "Rows read.",
    "redelivered_rows": "Rows that the broker had delivered before (needs observe_delay).",
    "phase_seconds": "Time spent in each phase of the triggers, by Spark's names.",
}
_GAUGES: Final = {
    "rows_per_second": "Rows processed per second in the latest trigger.",
    "trigger_seconds": "Duration of the latest trigger.",
    "trigger_start_timestamp_seconds": "Start of the latest trigger.",
    "broker_seconds": "Time from the publication of the oldest row to the start of its trigger (needs observe_delay).",
    "delay_seconds": "Time from the publication of the oldest row to the end of its trigger (needs observe_delay).",
    "lag": "Messages or entries of the topic that the query has not read (needs Spark 4.2).",
    "lag_is_exact": "0 if the lag is a lower bound.",
}
_LABELS: Final = {
    "phase_seconds": ("query", "phase"),
    "lag": ("query", "topic", "unit"),
    "lag_is_exact": ("query", "topic", "unit"),
}


@dataclass
class _Query:
    """The totals of a query, and its latest trigger; None once the query has ended."""

    latest: TriggerProgress | None = None
    totals: Counter[str] = field(default_factory=Counter)
    phase_seconds: dict[str, float] = field(default_factory=dict)

    def add(self, trigger: TriggerProgress) -> None:
        self.latest = trigger
        self.totals["triggers"] += 1
        self.totals["rows"] += trigger.rows
        if trigger.redelivered is not None:
            self.totals["redelivered_rows"] += trigger.redelivered
        for phase, seconds in trigger.phase_seconds.items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds

    def samples(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        """Yield the name, the labels behind `query`, and the value of each sample."""
        for name, total in self.totals.items():
            yield name, (), total
        for phase, seconds in self.phase_seconds.items():
            yield "phase_seconds", (phase,), seconds
        trigger = self.latest
        if trigger is None:
            return
        yield "rows_per_second", (), trigger.rows_per_second
        yield "trigger_seconds", (), trigger.seconds
        yield "trigger_start_timestamp_seconds", (), trigger.at.timestamp()
        if trigger.delay_seconds is not None:
            # The oldest row may be published after the trigger's start, while the trigger is planned.
            yield "broker_seconds", (), max(trigger.delay_seconds - trigger.seconds, 0.0)
            yield "delay_seconds", (), trigger.delay_seconds
        for labels, (behind, is_exact) in _bounded_lags(trigger).items():
            yield "lag", labels, behind
            yield "lag_is_exact", labels, is_exact


def _bounded_lags(trigger: TriggerProgress) -> Mapping[tuple[str, str], tuple[int, bool]]:
    """Return the lag by topic and unit, and whether it is exact."""
    lags: dict[tuple[str, str], tuple[int, bool]] = {}
    for n, lag in enumerate(sorted(trigger.lags, key=lambda lag: -lag.behind)):
        key = (lag.topic if n < MAX_TOPICS else "other", lag.unit)
        behind, is_exact = lags.get(key, (0, True))
        lags[key] = (behind + lag.behind, is_exact and lag.is_exact)
    return lags


class MetricsListener(ProgressListener):
    """A `ProgressListener` that exports the triggers as Prometheus metrics, named `spark_mq_...`, and prints nothing.

    The label `query` is the query's name, or the first 8 characters of its id. When a query ends, its totals stay, and
    the values of its latest trigger are removed. `MAX_QUERIES` and `MAX_TOPICS` bound the number of series.

    Args:
        port: serve the metrics on this port; 0 takes a free one, None serves nothing.
        address: the interface to serve on; `0.0.0.0` lets other machines connect, without authentication.
        registry: the registry to export into, for example `prometheus_client.REGISTRY`, which the application itself
            serves; None for a new one.

    Attributes:
        port: the port that is served, or None.
        registry: the registry.

    Raises:
        UnsupportedFeatureError: prometheus-client is not installed.
        OSError: the port cannot be served.

    Example:
        ::

            metrics = MetricsListener(port=9108, address="0.0.0.0")
            spark.streams.addListener(metrics)
            query = observe_delay(stream).writeStream.queryName("delays").format("noop").start()
            # curl http://driver:9108/metrics
    """

    def __init__(
        self, port: int | None = None, *, address: str = "127.0.0.1", registry: CollectorRegistry | None = None
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise UnsupportedFeatureError(
                "MetricsListener needs prometheus-client: pip install 'spark-mq-source[metrics]' on the driver"
            ) from error
        super().__init__(say=None)
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._names: dict[str, str] = {}
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)
        self._server = None if port is None else start_http_server(port, address, self.registry)[0]
        self.port = None if self._server is None else self._server.server_port

    def close(self) -> None:
        """Stop serving, and remove the metrics from the registry."""
        self.registry.unregister(self)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; the registry calls this for each request."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - the same

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for kind, texts in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, text in texts.items():
                families[name] = kind(f"spark_mq_{name}", text, labels=_LABELS.get(name, ("query",)))
        with self._lock:
            for name, query in self._queries.items():
                for metric, labels, value in query.samples():
                    families[metric].add_metric((name, *labels), value)
        return families.values()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Count the trigger."""
        super().onQueryProgress(event)
        trigger = self.triggers[-1]
        with self._lock:
            self._names[str(event.progress.id)] = trigger.query
            query = self._queries.pop(trigger.query, None) or _Query()
            query.add(trigger)
            self._queries[trigger.query] = query
            if len(self._queries) > MAX_QUERIES:
                del self._queries[next(iter(self._queries))]

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Remove the values of the latest trigger."""
        with self._lock:
            query = self._queries.get(self._names.pop(str(event.id), ""))
            if query is not None:
                query.latest = None
