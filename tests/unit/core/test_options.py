"""The common part of all formats' options."""

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import pytest

from spark_mq_source.core import options as options_module
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import (
    READ,
    STREAM,
    WRITE,
    Options,
    Scope,
    Section,
    StrEnum,
    at_least,
    option,
    parse_bool,
    parse_duration_ms,
    parse_int,
    parse_list,
    parse_size_bytes,
    parse_text,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, repr=False)
class BoatOptions(Options):
    format_name: ClassVar[str] = "boat"
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "serviceUrl": ("service.url",),
        "oars": ("paddles", "boat.oars"),
    }

    service_url: str = option("Where.", scope=READ | STREAM | WRITE)
    auth_token: str | None = option("Who.", default=None, scope=READ | WRITE, secret=True)
    fail_on_data_loss: bool = option("Stop | go.", default=True)
    colour: Colour = option("Hull.", default=Colour.RED)  # noqa: RUF009 - this is dataclasses.field()
    oars: int | None = option("Pairs.", default=None, check=at_least(1), section=Section.LIMIT)
    patience_ms: int = option(
        "How long.", default=30_000, default_text="`30s`", name="patience", parse=parse_duration_ms
    )
    ports: tuple[str, ...] = option("Calls.", default=(), parse=parse_list)
    end: int | None = option("Last.", default=None, scope=READ)
    topic: str | None = option("To.", default=None, scope=WRITE)

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if self.end is not None and self.oars is not None and self.end < self.oars:
            yield f"end before oars when {scope.name}"
        if "oars" in given and "ports" in given:
            yield "oars and ports"


def read(**options):
    return BoatOptions.from_spark({"serviceUrl": "mq://h", **options}, READ)


def refusal(options, scope=READ):
    with pytest.raises(OptionError) as caught:
        BoatOptions.from_spark(options, scope)
    # Spark shows the text of the whole traceback: the error must have no cause or context
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return str(caught.value)


def test_names_are_found_without_case_and_values_are_typed():
    options = BoatOptions.from_spark(
        {
            "serviceurl": "mq://h",
            "FAILONDATALOSS": "False",
            "colour": "BLUE",
            "end": "3",
            "patience": "2m",
            "ports": "a, b",
        },
        READ,
    )
    assert options == BoatOptions(
        service_url="mq://h",
        fail_on_data_loss=False,
        colour=Colour.BLUE,
        end=3,
        patience_ms=120_000,
        ports=("a", "b"),
    )
    options = BoatOptions.from_spark({"service.url": "mq://h", "PADDLES": "2", "colour": None}, READ)
    assert options == read(oars="2")
    assert (options.fail_on_data_loss, options.colour) == (True, Colour.RED)


def test_all_problems_are_in_one_sentence():
    assert refusal({"failondataloss": "ture", "oars": "0", "startingofset": "x", "ports": "a", "patience": "-1"}) == (
        "format 'boat': serviceUrl: required but not set; failOnDataLoss='ture': expected true or false; "
        "oars='0': must be at least 1; patience='-1': expected a duration such as 500ms, 30s, 5m or a plain number of "
        "milliseconds; startingofset: unknown option; oars and ports"
    )


UNKNOWN, KAFKA = "unknown option", "that is Spark's Kafka source"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        *(
            ({written: "true"}, f"{written}: {UNKNOWN} (did you mean {meant}?)")
            for written, meant in (
                ("failondataloos", "failOnDataLoss"),
                ("fail_on_data_loss", "failOnDataLoss"),
                ("fail.on.data.loss", "failOnDataLoss"),
                ("service.uri", "serviceUrl"),
                ("authtokn", "authToken"),
                ("padles", "oars"),
            )
        ),
        # No option is suggested that has no meaning in this scope.
        ({"topik": "t"}, f"topik: {UNKNOWN}"),
        ({"kafka.bootstrap.servers": "x"}, f"kafka.bootstrap.servers: {UNKNOWN} ({KAFKA}; here it is serviceUrl)"),
        ({"kafka.security.protocol": "x"}, f"kafka.security.protocol: {UNKNOWN} ({KAFKA})"),
        ({"subscribePattern": "x"}, f"subscribepattern: {UNKNOWN} ({KAFKA})"),
        ({"service.url": "b"}, "serviceUrl and service.url are the same option: set only one"),
        ({"end": "1", "oars": "2"}, "end before oars when READ"),
    ],
)
def test_errors_name_the_problem(given, sentence):
    assert refusal({"serviceurl": "h", **given}) == f"format 'boat': {sentence}"


@pytest.mark.parametrize("key", ["path", "paths"])
def test_an_invalid_path_is_refused_with_a_separate_message(key):
    assert "load() and save() take no path here" in refusal({"serviceurl": "h", key: "/data"})


def test_an_option_of_the_other_direction_is_ignored_and_logged_once(caplog):
    options_module.warn_of_ignored.cache_clear()
    for _ in range(2):
        assert BoatOptions.from_spark({"serviceurl": "h", "topic": "t"}, READ).service_url == "h"
        assert BoatOptions.from_spark({"serviceurl": "h", "boat.OARS": "many"}, WRITE).oars is None
    assert caplog.messages == [
        "format 'boat': option topic has no effect when reading a batch",
        "format 'boat': option oars has no effect when writing",
    ]
    assert "end: has no meaning when reading a stream" in refusal({"serviceurl": "h", "end": "1"}, STREAM)


def test_options_that_spark_adds_to_a_sink_are_accepted():
    options = {"serviceurl": "h", "checkpointLocation": "/c", "queryname": "q"}
    assert BoatOptions.from_spark(options, WRITE).service_url == "h"
    assert "checkpointlocation: unknown option" in refusal(options, READ)


SECRET = "eyJhbGciOiJIUzI1NiJ9"


def _refuse(text):
    raise ValueError(f"{text} will not do")


@dataclass(frozen=True, kw_only=True, repr=False)
class PickyOptions(Options):
    format_name: ClassVar[str] = "picky"

    auth_token: str = option("Who.", secret=True, parse=_refuse)
    auth_password: str | None = option("Who.", default=None, secret=True, check=_refuse)


def test_a_secret_is_in_no_error_even_if_its_parser_shows_it():
    with pytest.raises(OptionError) as caught:
        PickyOptions.from_spark({"authtoken": SECRET, "authpassword": SECRET + "2"}, READ)
    assert str(caught.value) == (
        "format 'picky': authToken='***': *** will not do; authPassword='***': *** will not do"
    )


def test_a_secret_under_a_wrong_name_is_not_shown():
    assert SECRET not in refusal({"serviceurl": "h", "authtokn": SECRET})


def test_a_secret_is_in_no_repr():
    options = read(authToken=SECRET)
    assert repr(options) == "BoatOptions(service_url='mq://h', auth_token='***')"
    assert SECRET not in f"{options} {options!r} {[options]}"
    assert options.auth_token == SECRET


def test_credentials_in_a_url_are_not_shown():
    assert "pw" not in repr(BoatOptions(service_url="mq://user:p@w/@h:1"))
    assert refusal({"serviceurl": "h", "oars": "http://user:pw@h"}).count("***") == 1
    assert "pw" not in refusal({"serviceurl": "h", "http://user:pw@h": "1"})


def test_a_long_value_is_truncated():
    assert len(refusal({"serviceurl": "h", "oars": "9" * 100_000})) < 400


def test_options_are_frozen_compared_and_pickled():
    options = read(oars="3", authToken=SECRET)
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes
    with pytest.raises(FrozenInstanceError):
        options.oars = 4


def test_options_described():
    found = {one.name: one for one in BoatOptions.described()}
    url = found["serviceUrl"]
    assert (url.scope, url.default, url.doc) == (READ | STREAM | WRITE, "required", "Where.")
    assert (url.aliases, url.section) == (("service.url",), Section.CONNECT)
    assert found["authToken"].default == found["end"].default == ""
    assert found["failOnDataLoss"].default == "`true`"
    assert found["colour"].default == "`red`"
    assert found["patience"].default == "`30s`"
    assert found["end"].scope == READ


def test_an_option_is_in_the_section_of_the_option_above_unless_it_names_another():
    sections = {one.name: one.section for one in BoatOptions.described()}
    assert (sections["colour"], sections["oars"], sections["ports"]) == (
        Section.CONNECT,
        Section.LIMIT,
        Section.LIMIT,
    )


def test_names():
    assert BoatOptions.names(WRITE) == ("serviceUrl", "service.url", "authToken", "topic", "debug")


def test_a_field_without_a_parser_is_an_internal_error():
    @dataclass(frozen=True, kw_only=True, repr=False)
    class WrongOptions(Options):
        ratio: float = option("What.", default=0.5)

    with pytest.raises(TypeError, match="ratio: no parser"):
        WrongOptions.from_spark({}, READ)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bool, "true", True),
        (parse_bool, "FALSE", False),
        (parse_int, "+5", 5),
        (parse_int, "-007", -7),
        (parse_text, "a b", "a b"),
        (parse_list, "a", ("a",)),
        (parse_duration_ms, "0", 0),
        (parse_duration_ms, "500MS", 500),
        (parse_duration_ms, "2h", 7_200_000),
        (parse_size_bytes, "0", 0),
        (parse_size_bytes, "64k", 65_536),
        (parse_size_bytes, "64MB", 67_108_864),
        (parse_size_bytes, "1g", 1_073_741_824),
        (parse_size_bytes, "12b", 12),
    ],
)
def test_values(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_bool, text) for text in ("ture", "1", "yes", "", " true", "True\n")),
        *((parse_int, text) for text in ("", "1_000", "1e3", "1.0", " 1", "٣", "9" * 20, "0x1", "1\n")),
        *((parse_text, text) for text in ("", " ", " a", "a\n")),
        *((parse_list, text) for text in ("", ",", "a,,b", "a,")),
        *((parse_duration_ms, text) for text in ("", "s", "-1s", "1.5s", "30 s", "1d", "30sec", "٣s", "1s\n")),
        *((parse_size_bytes, text) for text in ("", "m", "-1", "1.5m", "64 m", "1t", "1mib", "1\n")),
    ],
)
def test_strictness(parse, text):
    with pytest.raises(ValueError, match=re.compile("expected|empty|spaces")):
        parse(text)
