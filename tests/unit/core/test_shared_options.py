"""Options of all formats: rules of their declarations, and errors of options that the formats share."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, Options, Scope
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.tubemq.options import TubeMQOptions

SECRET = "do-not-show-me"
NEEDED: dict[type[Options], dict[str, str]] = {
    PulsarOptions: {"serviceUrl": "pulsar://h", "topic": "t"},
    TubeMQOptions: {"masters": "m", "topic": "t"},
    NsqOptions: {"nsqdTcpAddresses": "h", "topic": "t", "channel": "c", "maxRows": "1"},
}
OF_STREAMS: dict[type[Options], dict[str, str]] = {
    TubeMQOptions: {"group": "g"},
    NsqOptions: {"walDir": "/w", "maxRows": None},  # type: ignore[dict-item] # as a user who unsets it
}
SECRETS = {
    PulsarOptions: {"authToken", "authBasicPassword", "authClientSecret", "authIssuerTrustCertsPassword"},
    TubeMQOptions: {"authPassword"},
    NsqOptions: {"authSecret"},
}


@pytest.fixture(params=NEEDED, ids=lambda kind: kind.format_name)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def made(kind: Any, scope: Scope = READ, **given: str) -> Any:
    needed = NEEDED[kind] | (OF_STREAMS.get(kind, {}) if scope == STREAM else {})
    return kind.from_spark(needed | given, scope)


def test_every_default_text_is_parsed_to_the_default_and_valid(kind: Any):
    for one in kind.described():
        text = one.declared.default_text
        if text is not None and isinstance(one.field.default, int):
            assert one.parse(text.strip("`")) == one.field.default, one.name
        if one.declared.check is not None and isinstance(one.field.default, int):
            one.declared.check(one.field.default)


def test_names_are_unique_without_case_and_secrets_are_redacted_by_spark(kind: Any):
    names = [name.lower() for name in kind.names()]
    assert len(names) == len(set(names))
    redacted = re.compile(r"(?i)secret|password|token|access[.]?key")  # spark.redaction.regex, pyspark 4.0 to 4.3
    secrets = [one for one in kind.described() if one.declared.secret]
    assert {one.name for one in secrets} == SECRETS[kind] | {"trustCertsPassword", "clientKeyPassword"}
    for one in secrets:
        assert all(redacted.search(name) for name in one.names)
        assert one.field.repr is False


def test_options_travel_to_executors_and_show_no_secret(kind: Any):
    tls = {"serviceUrl": "pulsar+ssl://h"} if kind is PulsarOptions else {"tls": "true"}
    options = made(kind, **tls, clientCert="c", clientKeyPassword=SECRET)
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes
    assert SECRET not in repr(options)


@pytest.mark.parametrize(
    ("scope", "given", "sentence"),
    [
        (READ, {"clientKey": "k"}, "clientKey needs clientCert"),
        (READ, {"trustCerts": "c"}, "trustCerts has no meaning without TLS: "),
        (READ, {"onCorrupt": "deadLetter"}, "onCorrupt=deadLetter and deadLetterTopic go together: set both"),
        (READ, {"onCorrupt": "deadLetter", "deadLetterTopic": "t"}, "deadLetterTopic: must differ from a topic that"),
        (STREAM, {"maxTriggerDelay": "1m"}, "maxTriggerDelay needs minRowsPerTrigger"),
        (STREAM, {"minRowsPerTrigger": "9", "maxRowsPerTrigger": "8"}, r"minRowsPerTrigger \(9\) is more than max"),
        (READ, {"maxRowsPerTrigger": "1"}, "maxRowsPerTrigger: has no meaning when reading a batch"),
        (READ, {"topics": "u"}, "set exactly one of topic, topics, topicsPattern, not topic and topics"),
    ],
)
def test_contradictions_in_every_format_are_refused(kind: Any, scope: Scope, given: dict[str, str], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        made(kind, scope, **given)
