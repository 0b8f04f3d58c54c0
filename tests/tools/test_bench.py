"""The benchmark without its brokers: the loop, the report over recorded results, the command line."""

from __future__ import annotations

import doctest
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench import __main__ as command
from bench import first, nsq, pulsar_typed, report, runner, sources
from bench.avro import THREE
from bench.engine import Engine, Job, OtherEngine, jobs, value_file
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.pulsar.payload.registry import encoding_of_schema
from spark_mq_source.testing import NsqBroker
from spark_mq_source.values.encodings import Encoding, decoder_for


class Recorder:
    """An engine that takes note of its jobs."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.jobs: list[Job] = []

    def run(self, job: Job) -> dict[str, float]:
        self.jobs.append(job)
        return {"value": float(len(self.jobs)), "worker_ns": 100.0 / len(self.jobs)}


READ = Job("read", "nsq", {"topic": "t"}, 10)


def case_of(order: list[str], **more: Any) -> runner.Case:
    def noted(name: str) -> dict[str, float]:
        order.append(name)
        return {"value": 1e6}

    contenders = [
        runner.Contender("ours", "nsq", "ours", runner.here(noted, "ours")),
        runner.Contender("raw", "raw drain", "limit", runner.here(noted, "raw")),
        runner.Contender("peer", "pynsq", "peer", runner.here(noted, "peer"), warm=0),
    ]
    return runner.Case("read", "100 B", contenders, **more)


def test_contenders_run_in_turn_after_what_warms_them() -> None:
    order: list[str] = []
    said: list[str] = []
    case = case_of(order, prepare=lambda: order.append("prepare"))
    measured = runner.measure(case, {"this": Recorder()}, 2, said.append)  # type: ignore[dict-item]
    assert order == ["prepare", "ours", "raw", "ours", "raw", "peer", "peer", "raw", "ours"]
    assert said == ["read 100 B", *(f"  {n}/2 M rows/s: ours 1, raw 1, peer 1" for n in (1, 2))]
    assert measured.document()["contenders"]["peer"] == {
        "label": "pynsq", "role": "peer", "beside": "ours", "value": [1e6, 1e6],
    }  # fmt: skip


def test_a_contender_that_cannot_be_had_is_left_out() -> None:
    def refuse(_engine: object) -> dict[str, float]:
        raise runner.UnavailableError("no jar")

    case = case_of([])
    case = replace(case, contenders=[*case.contenders, runner.Contender("spark", "Spark's own", "peer", refuse)])
    said: list[str] = []
    measured = runner.measure(case, {"this": Recorder()}, 1, said.append)  # type: ignore[dict-item]
    assert said[1] == "  without Spark's own: no jar"
    assert list(measured.document()["contenders"]) == ["ours", "raw", "peer"]


FLIGHTS = {"avro": pulsar_typed._avro, "json": pulsar_typed._json, "protobuf": pulsar_typed._protobuf}


@pytest.mark.parametrize("make", FLIGHTS.values(), ids=FLIGHTS)
def test_typed_columns_are_those_that_the_plain_loop_makes(make: Any, tmp_path: Path) -> None:
    made = make(tmp_path)
    encoding = encoding_of_schema(made.schema)
    assert isinstance(encoding, Encoding)
    for names in (THREE, tuple(pulsar_typed.FIELDS)):
        wanted = arrow_type_of_ddl(pulsar_typed.columns(names)).field("value").type
        decoder = decoder_for(encoding, wanted, encoding)
        found = decoder.decode(pa.array(made.values[:100], pa.binary()))
        assert found.reasons == {}
        for row, value in zip(found.values.to_pylist(), made.values, strict=False):
            flight = made.decode(value)
            if not isinstance(flight, dict):
                flight = dict(zip(pulsar_typed.FIELDS, flight, strict=True))
            # Times come as numbers or as objects, by the library.
            assert {k: v for k, v in row.items() if k != "time_hour"} == {
                name: flight[name] for name in names if name != "time_hour"
            }
            assert row["time_hour"] is not None


def test_two_engines_run_each_contender_in_turn_and_are_compared() -> None:
    ended = []

    @contextmanager
    def around() -> Iterator[Job]:
        yield READ
        ended.append("around")

    case = runner.Case("read", "100 B", [runner.ours("ours", "nsq", READ, around)], repeats=3)
    this, other = Recorder(), Recorder()
    measured = runner.measure(case, {"this": this, "other": other}, 1, lambda _: None)  # type: ignore[dict-item]
    assert (len(this.jobs), len(other.jobs), len(ended)) == (4, 4, 8)
    part = {"cases": [measured.document()]}
    assert (
        report.comparison(part, "abc")
        .splitlines()[2]
        .startswith("| 100 B: nsq | 0.00 | 0.00 | 1.000 (1.000 to 1.000) |")
    )


RECORDED = [(protocol, part) for protocol in ("pulsar", "tubemq", "nsq") for part in report.load(protocol)]


@pytest.mark.parametrize(("protocol", "part"), RECORDED)
def test_recorded_results_as_a_table(protocol: str, part: str) -> None:
    found = report.load(protocol)[part]
    rows = report.table(found).splitlines()
    assert len(rows) == len(found["cases"]) + 4
    assert rows[0].count("|") == rows[2].count("|") == len(report.contenders(found)) + 2
    for case, row in zip(found["cases"], rows[2:], strict=False):
        assert row.startswith(f"| {case['name']}")
    assert rows[-1].startswith("Medians of ")


def test_results_are_kept_by_part(tmp_path: Path) -> None:
    found = report.load("nsq")
    report.save("nsq", {"read": found["read"]}, tmp_path)
    report.save("nsq", {"write": found["write"]}, tmp_path)
    assert report.load("nsq", tmp_path) == {"read": found["read"], "write": found["write"]}
    report.save("pulsar", {"typed": found["read"]}, tmp_path)
    assert list(report.load("pulsar", tmp_path)) == ["typed"]


@pytest.mark.parametrize("module", [report, pulsar_typed])
def test_examples_in_docstrings(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_jobs_travel_as_json() -> None:
    assert list(jobs(iter([json.dumps(asdict(READ))]))) == [READ]


def test_a_worker_writes_down_what_it_used(tmp_path: Path) -> None:
    batches = value_file(tmp_path, 10, 2)
    given = {"measuredFormat": "bench-null", "measuredFolder": str(tmp_path / "measured")}
    (tmp_path / "measured").mkdir()
    source = sources.MeasuredSource({**given, "batches": batches, "rows": "25000", "partitions": "2"})
    reader = source.reader(pa.schema([]))  # type: ignore[arg-type]
    for partition in reader.partitions():
        assert sum(batch.num_rows for batch in reader.read(partition)) == 25_000
    found = [json.loads(file.read_text()) for file in (tmp_path / "measured").iterdir()]
    assert [each["rows"] for each in found] == [25_000, 25_000]
    assert all(each["ns"] > 0 for each in found)


def test_nsq_without_spark_and_beside_its_limits(tmp_path: Path) -> None:
    setup = runner.Setup(Engine(tmp_path), tmp_path, 0.001)
    with NsqBroker() as broker, closing(OtherEngine(report.FOLDER.parent, tmp_path)) as engine:
        assert Path(engine.package).parent.parent == report.FOLDER.parent
        cases = list(nsq.cases(nsq.Broker(broker.tcp_address, broker.http_address), setup))
        assert [case.part for case in cases] == ["read", "write"]
        for case in cases:
            few = [replace(one, warm=0) for one in case.contenders if one.name == "alone" or one.role == "limit"]
            measured = runner.measure(replace(case, contenders=few), {"this": engine}, 1, lambda _: None)
            assert len(few) == 2
            assert all(sample["worker_ns"] > 0 for [sample] in measured.samples.values())


def parsed(*arguments: str) -> Any:
    return command._parse(arguments)


def test_command_line() -> None:
    assert (parsed().protocols, parsed().scale) == (command.PROTOCOLS, 1.0)
    assert (parsed("nsq", "--quick").protocols, parsed("--quick").scale) == (["nsq"], command.QUICK_SCALE)
    assert parsed("--update-readme").output == report.FOLDER
    for wrong in (["redis"], ["--against", "main", "--output", "x"], ["--quick", "--update-readme"]):
        with pytest.raises(SystemExit):
            parsed(*wrong)


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ([], ["ours", "raw", "peer"]),
        (["--quick"], ["ours", "raw"]),
        (["--quick", "--only", "peer"], ["peer"]),
        (["--against", "main"], ["ours"]),
    ],
)
def test_contenders_of_a_command_line(arguments: list[str], chosen: list[str]) -> None:
    case = command._chosen(case_of([]), parsed(*arguments))
    assert [one.name for one in case.contenders] == chosen


def test_a_loop_alone_is_measured_in_rounds_and_its_median_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter((2e6, 5e5, 1e6, 4e6, 1e6, 8e6))
    given: list[float] = []

    def rate(seconds: float) -> float:
        given.append(seconds)
        return next(found)

    monkeypatch.setattr("bench.json.runs", lambda: iter([("ours", rate), ("theirs", rate)]))
    monkeypatch.setattr("sys.argv", ["bench", "json", "--seconds", "0.5", "--repeats", "3"])
    command.main()
    assert given == [0.5] * 6
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["json", "M", "rows/s", "best", "ns/row"],
        ["ours", "2.000", "4.000", "500"],
        ["theirs", "1.000", "8.000", "1000"],
    ]


def test_cases_are_whole_batches_for_each_task(tmp_path: Path) -> None:
    setup = runner.Setup(Engine(tmp_path), tmp_path, 0.25)
    assert [setup.scaled(n) for n in (8_000_000, 1_520_000, 1)] == [2_000_000, 400_000, 40_000]


def test_first_reads_are_shown_as_medians_by_part() -> None:
    runs = [{"load 1": seconds, "load 1, JVM": 2 * seconds} for seconds in (1.0, 3.0, 2.5)]
    assert first._shown({"this": runs, "null source": runs[:1]}).splitlines() == [
        "| | this | null source |", "|---|---:|---:|", "| load 1 | 2.5 | 1 |", "| load 1, JVM | 5 | 2 |",
    ]  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_the_processor_time_of_processes_below_another_one() -> None:
    above, below = first._busy(os.getppid())
    assert above >= 0
    assert below > 0  # this process, at least
