"""The options of InLong's messages, as `tubemq` has them."""

from __future__ import annotations

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.values.inlong.fields import StreamLayout
from spark_mq_source.values.inlong.texts import Delimiters
from spark_mq_source.values.options import typed_read_of


def options(**given: str) -> TubeMQOptions:
    return TubeMQOptions.from_spark({"masters": "m", "topic": "t", "valueFormat": "inlong", **given}, READ)


def test_the_layout() -> None:
    fields = {"inlongFields": "a int", "inlongSeparator": "44", "inlongEscape": "\\", "inlongLineSeparator": "10"}
    typed = typed_read_of(options(**fields, inlongStreams="a,b", messageTimeZone="Asia/Shanghai", inlongNullText=""))
    assert typed is not None
    assert typed.value is not None
    assert (typed.value.definition, typed.flatten) == ("a int", True)
    delimiters = Delimiters(",", line="\n", escape="\\")
    assert typed.value.layout == StreamLayout("csv", delimiters, "", (), "Asia/Shanghai")
    kv = options(inlongFields="a int", inlongDataType="KV", inlongEntrySeparator="|", inlongKvSeparator=":")
    assert kv.layout.delimiters == Delimiters("|", ":")


def test_the_broker_filters_by_the_streams() -> None:
    assert options(inlongStreams="a, b").filters == ("a", "b")
    assert options(inlongStreams="a", filters="c").filters == ("c",)
    # The names of streams are the types of messages, which may contain only their numbers.
    assert options(inlongStreams="a, b").layout.streams == ()
    assert options(inlongStreams="a", filters="c").layout.streams == ("a",)
    assert options(inlongStreams="a", topicFilters='{"t": ["c"]}').layout.streams == ("a",)
    assert options().filters == ()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"valueFormat": "json", "inlongStreams": "a"}, "inlongStreams needs valueFormat=inlong"),
        ({"inlongSeparator": ";"}, "inlongSeparator needs inlongFields"),
        ({"inlongFields": "a int", "inlongSeparator": "300"}, "expected one character, or its code in ASCII"),
        ({"inlongFields": "a int", "inlongEscape": "|"}, "inlongSeparator and the other characters .* must differ"),
        ({"valueSchema": "a int"}, "valueSchema has no meaning with valueFormat=inlong"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        options(**given)


def test_options_of_another_data_type_are_refused() -> None:
    of_text = {"inlongLineSeparator": "10", "inlongEscape": "92", "inlongQuote": "34", "inlongNullText": "NULL"}
    of_kv = {"inlongEntrySeparator": ";", "inlongKvSeparator": ":"}
    of_csv = {"inlongSeparator": ";"}
    for kind, fitting, others in (
        ("csv", of_csv | of_text, of_kv),
        ("kv", of_kv | of_text, of_csv),
        ("json", {}, of_csv | of_kv | of_text),
    ):
        given = {"inlongFields": "a int", "inlongDataType": kind}
        options(**given, **fitting)
        for name, text in others.items():
            with pytest.raises(OptionError, match=f"{name} has no meaning with inlongDataType={kind}, but with "):
                options(**given, **{name: text})
    with pytest.raises(OptionError, match="inlongDataType=kv, but with csv: set inlongEntrySeparator instead"):
        options(inlongFields="a int", inlongDataType="kv", inlongSeparator=";")
    writing = {"masters": "m", "topic": "t", "valueFormat": "inlong", "inlongKvSeparator": ":"}
    with pytest.raises(OptionError, match="inlongKvSeparator has no meaning with inlongDataType=csv"):
        TubeMQOptions.from_spark(writing, WRITE)
