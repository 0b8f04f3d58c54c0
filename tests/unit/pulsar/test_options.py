"""Options of pulsar-native, and errors of invalid ones."""

import base64
import dataclasses
import json
import sys

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE, warn_of_ignored
from spark_mq_source.core.shared_options import OnCorrupt
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.pulsar.client.session import authentication_of
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position
from spark_mq_source.pulsar.options import PulsarOptions, parse_service_url, parse_topics_pattern
from spark_mq_source.values.encodings import Encoding, TypedRead
from spark_mq_source.values.options import typed_read_of

T = "persistent://public/default/t"
URL = {"serviceUrl": "pulsar://h"}
TLS = {"serviceUrl": "pulsar+ssl://h"}
SECRET = "eyJhbGciOiJIUzI1NiJ9.x"
PLUGIN = "pulsar.client.authPluginClassName"
PARAMS = "pulsar.client.authParams"
JAVA = "org.apache.pulsar.client.impl.auth."
CREDENTIALS = json.dumps({"type": "client_credentials", "client_id": "c", "client_secret": SECRET})
CREDENTIALS_URL = f"data:application/json;base64,{base64.b64encode(CREDENTIALS.encode()).decode()}"


def read(scope=READ, **options):
    return made({**URL, "topic": "t", **options}, scope)


def made(options, scope=READ):
    # as Spark passes them
    return PulsarOptions.from_spark({key.lower(): text for key, text in options.items()}, scope)


def refusal(options, scope=READ):
    with pytest.raises(OptionError) as caught:
        made(options, scope)
    sentence = str(caught.value)
    assert sentence.startswith("format 'pulsar-native': ")
    assert SECRET not in sentence
    assert caught.value.__context__ is None
    return sentence.removeprefix("format 'pulsar-native': ")


OTHERS = "failoverServiceUrls"
STORE = {"readOffloaded": "auto", "offloadStorage": "/x", "adminUrl": "http://h"}
DDL = "a int, b array<string>"
AVRO = '{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}'


def test_encodings_of_values():
    assert (read().value_format, read().typed) == ("raw", None)
    options = read(valueFormat="JSON", valueSchema=DDL, keyFormat="int64", flatten="true")
    assert typed_read_of(options) == TypedRead(Encoding("json", DDL), Encoding("int64"), flatten=True)
    options = read(valueFormat="protobuf", valueSchema="CggKAWEiAwoBRg==", valueMessage="F")
    assert typed_read_of(options) == TypedRead(Encoding("protobuf", "CggKAWEiAwoBRg==", "F"))
    options = read(keyFormat="protobuf", keySchema="CggKAWEiAwoBRg==", keyMessage="F")
    assert typed_read_of(options) == TypedRead(None, Encoding("protobuf", "CggKAWEiAwoBRg==", "F"))
    assert typed_read_of(read()) is None


def test_a_schema_from_a_file(tmp_path):
    (tmp_path / "flight.avsc").write_text(AVRO + "\n")
    (tmp_path / "flight.desc").write_bytes(b'\n\x08\n\x01a"\x03\n\x01F')
    options = read(valueFormat="avro", valueSchema=f"file:{tmp_path}/flight.avsc")
    assert typed_read_of(options) == TypedRead(Encoding("avro", AVRO))
    options = read(valueFormat="protobuf", valueMessage="F", valueSchema=f"file://{tmp_path}/flight.desc")
    assert typed_read_of(options) == TypedRead(Encoding("protobuf", "CggKAWEiAwoBRg==", "F"))
    sentence = refusal(URL | {"topic": "t", "valueFormat": "avro", "valueSchema": f"file:{tmp_path}/none"})
    assert "cannot be read: No such file or directory" in sentence


@pytest.mark.parametrize("scope", [READ, STREAM, READ | STREAM])
@pytest.mark.parametrize(
    ("given", "sentences"),
    [
        ({"valueFormat": "xml"}, ["valueFormat='xml': expected raw, json, avro, protobuf, string, auto, bool"]),
        ({"valueFormat": "avro"}, ["valueFormat=avro needs valueSchema"]),
        ({"keyFormat": "avro"}, ["keyFormat=avro needs keySchema"]),
        ({"keyFormat": "auto"}, ["keyFormat='auto': expected raw, json, avro, protobuf, bool"]),
        ({"keyFormat": "protobuf"}, ["keyFormat=protobuf needs keySchema", "keyMessage go together: set both"]),
        ({"keyMessage": "F", "keyFormat": "avro"}, ["keyFormat=protobuf and keyMessage go together: set both"]),
        ({"valueSchema": DDL}, ["valueSchema has no meaning with valueFormat=raw: set valueFormat to avro"]),
        ({"valueSchema": DDL, "valueFormat": "auto"}, ["valueFormat=auto: the registry has the schema"]),
        (
            {"flatten": "true"},
            ["flatten needs values with fields: set valueFormat to json or avro or protobuf, not raw"],
        ),
        ({"valueMessage": "F"}, ["valueFormat=protobuf and valueMessage go together"]),
        (
            {"valueFormat": "protobuf", "keySchema": DDL},
            ["valueFormat=protobuf needs valueSchema", "keySchema has no meaning", "valueMessage go together"],
        ),
    ],
)
def test_contradictory_options_of_values(given, sentences, scope):
    sentence = refusal(URL | {"topic": "t"} | given, scope)
    assert [words for words in sentences if words not in sentence] == []


def test_options_of_reads_in_general_are_those_of_batches_and_of_streams():
    both = {"endingOffsets": "latest", "maxEntriesPerTrigger": "7"}
    assert made(URL | {"topic": "t"} | both, READ | STREAM).max_entries_per_trigger == 7
    assert made(URL | {"topic": "t", "createTopic": "true"}, READ | STREAM).topic == "persistent://public/default/t"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscriptionType": "Key_Shared", "subscription": "s"}, "subscriptionType=key_shared has no positions"),
        ({"subscriptionType": "shared"}, "subscriptionType=shared has no positions"),
        ({"subscriptionType": "failover"}, "subscriptionType needs subscription"),
        ({"subscriptionProperties": '{"a": "b"}'}, "subscriptionProperties needs subscription"),
        ({"subscription": "s", "subscriptionProperties": '{"a": 1}'}, "expected a JSON object of texts"),
        ({"subscription": "s", "subscriptionProperties": "[]"}, "expected a JSON object"),
        ({"subscription": "s", "priorityLevel": "1"}, "priorityLevel needs subscriptionType=failover"),
        ({"subscription": "s", "subscriptionType": "failover", "priorityLevel": "-1"}, "priorityLevel='-1'"),
        ({"consumerName": "a\nb"}, "contains control characters"),
    ],
)
def test_contradictory_options_of_subscriptions(given, sentence):
    assert sentence in refusal(URL | {"topic": "t"} | given, STREAM)


def test_options_of_a_subscription():
    options = read(
        STREAM,
        subscription="s",
        subscriptionType="Failover",
        priorityLevel="2",
        subscriptionProperties='{"a": "b", "c": ""}',
        consumerName="n",
    )
    assert (options.subscription_type.value, options.priority_level, options.consumer_name) == ("failover", 2, "n")
    assert options.subscription_properties == (("a", "b"), ("c", ""))


def test_defaults_and_normalised_values():
    options = read()
    assert (options.starting_at(T), options.ending_at(T), options.subscription_base) == (
        EARLIEST,
        LATEST,
        "spark-mq-source",
    )
    options = read(adminUrl="http://h:8080/", cryptoFailureAction="CONSUME", onCorrupt="null", subscription="s")
    assert (options.admin_url, options.on_encrypted, options.on_corrupt) == ("http://h:8080", "raw", OnCorrupt.NULL)
    assert options.subscription_base == "s"


@pytest.mark.parametrize("scope", [READ, STREAM, WRITE])
def test_the_error_without_options_names_the_required_ones(scope):
    topics = "; set exactly one of topic, topics, topicsPattern" if scope != WRITE else ""
    assert refusal({}, scope) == "serviceUrl: required but not set" + topics


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minPartitions", "0"),
        ("receiverQueueSize", "0"),
        ("receiverQueueSize", str(2**30 + 1)),
        ("receiveQueueBytes", "1023k"),
        ("maxBatchRows", "0"),
        ("maxBatchBytes", "2g"),
        ("maxMessageBytes", "2g"),
        ("operationTimeout", "0"),
        ("operationTimeout", "5d"),
        ("connectTimeout", "10000h"),
        ("keepAliveInterval", "99ms"),
        ("onCorrupt", "ignore"),
        ("tlsVerifyHostname", "no"),
        ("subscription", ""),
        ("subscription", "a\nb"),
        ("adminUrl", "h:8080"),
        ("adminUrl", "http://h:99999"),
        ("adminUrl", "http://h?x=1"),
    ],
)
def test_values_refused(name, text):
    assert refusal({**URL, "topic": "t", name: text}).startswith(f"{name}={text!r}: ")


# -- addresses


@pytest.mark.parametrize(
    ("text", "addresses", "tls"),
    [
        ("pulsar://h", (("h", 6650),), False),
        ("pulsar+ssl://h", (("h", 6651),), True),
        ("PULSAR://h1:1,h2", (("h1", 1), ("h2", 6650)), False),
        ("pulsar+ssl://a.b-c_d:7000, 10.0.0.1:65535/", (("a.b-c_d", 7000), ("10.0.0.1", 65535)), True),
        ("pulsar://[::1],[2001:DB8::1]:7000", (("::1", 6650), ("2001:db8::1", 7000)), False),
    ],
)
def test_service_urls(text, addresses, tls):
    assert parse_service_url(text) == (addresses, tls)
    options = read(serviceUrl=text)
    assert (options.addresses, options.uses_tls) == (addresses, tls)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://h:8080", "that is the admin address"),
        ("https://h:8443", "that is the admin address"),
        ("h:6650", "expected pulsar://host:6650"),
        ("kafka://h", "expected pulsar://host:6650"),
        ("pulsar:/h", "expected pulsar://host:6650"),
        ("pulsar://", "'' is not host or host:port"),
        ("pulsar://h,", "'' is not host or host:port"),
        ("pulsar://h:0", "0 is not a port"),
        ("pulsar://h:65536", "65536 is not a port"),
        ("pulsar://h:x", "'h:x' is not host or host:port"),
        ("pulsar://h/path", "'h/path' is not host or host:port"),
        ("pulsar://::1", "put an IPv6 address in brackets"),
        ("pulsar://[h]", "'h' is not an IPv6 address"),
        ("pulsar://h1,pulsar://h2", "write the scheme once"),
        ("pulsar://h\n", "has spaces around it"),
    ],
)
def test_service_urls_refused(text, reason):
    assert reason in refusal({"serviceUrl": text, "topic": "t"})


def test_credentials_in_the_address_are_refused_and_not_shown():
    sentence = refusal({"serviceUrl": f"pulsar://user:{SECRET}@h", "topic": "t"})
    assert sentence.startswith("serviceUrl='pulsar://***@h': the address cannot contain a user or password")
    assert "pw" not in refusal({**URL, "topic": "t", "adminUrl": "http://u:pw@h:8080"})


# -- topics


def test_topics():
    assert read(topic="a/b/t").topic_names == ("persistent://a/b/t",)
    assert made({**URL, "topics": "t, a/b/t"}).topic_names == (T, "persistent://a/b/t")
    options = made({**URL, "topicsPattern": "t.*"})
    assert options.topic_names == ()
    assert options.topics_pattern.matches(T)


def test_exactly_one_way_to_name_topics():
    assert refusal({**URL, "topic": "t", "topics": "u", "topicsPattern": "v"}) == (
        "set exactly one of topic, topics, topicsPattern, not topic and topics and topicsPattern"
    )
    # an invalid one counts too
    assert refusal({**URL, "topic": "a/b"}) == (
        "topic='a/b': expected name, tenant/namespace/name or persistent://tenant/namespace/name"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,public/default/t", f"duplicate topic {T}"),
        ("t,t-partition-0", f"{T}-partition-0 is a partition of {T}"),
        ("t,,u", "without empty names"),
        ("topic://a/b/c", "a scalable topic of Pulsar 5, which is not supported"),
        ("non-persistent://a/b/c", "stores nothing, so there are no positions to read from"),
    ],
)
def test_topics_refused(text, reason):
    assert reason in refusal({**URL, "topics": text})


@pytest.mark.parametrize(
    ("text", "namespace", "matching", "others"),
    [
        ("t.*", "public/default", [T, T + "1", T + "-partition-3"], ["persistent://public/default/st"]),
        ("a/b/t|u", "a/b", ["persistent://a/b/t", "persistent://a/b/u"], ["persistent://a/b/tu", T]),
        (
            "persistent://a/b.c/.*",
            "a/b.c",
            ["persistent://a/b.c/x"],
            ["persistent://a/bxc/x", "non-persistent://a/b.c/x"],
        ),
        ("a/(b|c-d)/t|u", "a/b a/c-d", ["persistent://a/b/t", "persistent://a/c-d/u"], ["persistent://a/c/t"]),
        ("persistent://(a|b)/c/(t|u)", "a/c b/c", ["persistent://b/c/u"], ["persistent://b/a/u"]),
        ("(a/b|c/d)/.*", "a/b c/d", ["persistent://c/d/t-partition-1"], ["persistent://a/d/t"]),
        ("persistent://a/b/(?i)T", "a/b", ["persistent://a/b/t"], ["persistent://a/b/tt"]),
        ("(a|b)*", "public/default", ["persistent://public/default/abba"], [T]),
        (r"([a-z]{3}-)+x", "public/default", ["persistent://public/default/abc-abc-x"], [T]),
        pytest.param(
            r"(?:[a-z]++-)++x",
            "public/default",
            ["persistent://public/default/a-abc-x"],
            [T],
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python's re has no possessive quantifiers"),
        ),
    ],
)
def test_topics_patterns(text, namespace, matching, others):
    pattern = parse_topics_pattern(text)
    assert " ".join(pattern.namespaces) == namespace
    assert all(pattern.matches(name) for name in matching)
    assert not any(pattern.matches(name) for name in others)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "not a regular expression"),
        ("[[a]b]", "not a regular expression"),
        ("(" * 400 + ")" * 400, None),
        ("a{1,99999999999}", "not a regular expression"),
        (r"\Qa\E", "not a regular expression"),
        ("a" * 1001, "longer than 1000"),
        ("(a+)+b", "for ever"),
        ("(.*a)*b", "for ever"),
        ("([a-z]{2,})+", "for ever"),
        ("public/.*/t", "a topic's name has no /"),
        ("persistent://public/.*/t", "plain names"),
        ("persistent://t.*", "plain names"),
        ("persistent://a/(b.*|c)/t", "lists of them"),
        ("persistent://(a/b|c)/t", "lists of them"),
        ("persistent://a/b/", "plain names"),
        ("a/b/c/d", "a topic's name has no /"),
        ("non-persistent://a/b/.*", "nothing can be read back"),
        ("topic://a/b/.*", "scalable topic"),
    ],
)
def test_topics_patterns_refused(text, reason):
    if reason is None:  # it may be accepted or refused, but without delay: a hang ends at the timeout of the test
        try:
            parse_topics_pattern(text)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - both outcomes are right
    else:
        assert reason in refusal({**URL, "topicsPattern": text})


# -- ranges


def test_offsets():
    options = read(
        startingOffsets='{"t": {"0": {"ledger": 1, "entry": 2}}}', endingOffsets='{"t": {"0": "latest", "1": "latest"}}'
    )
    assert options.starting_at(T + "-partition-0") == Position(1, 2)
    assert options.starting_at(T + "-partition-1") is None
    assert options.ending_at(T + "-partition-0") == LATEST


def test_timestamps():
    options = read(startingTimestamp="1970-01-01T00:00:01Z", endingTime='{"t": 5000}')
    assert (options.starting_at(T), options.ending_at(T), options.ending_at(T + "x")) == (1000, 5000, None)
    assert read(startingTimestamp="0").starting_at(T) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: latest would read nothing in a batch"),
        ({"startingOffsets": '{"t": "latest"}'}, "startingOffsets: latest would read nothing in a batch"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest would read nothing"),
        ({"endingOffsets": '{"t": {"0": "earliest"}}'}, "endingOffsets: earliest would read nothing"),
        ({"startingOffsets": "earliest", "startingTime": "5"}, "startingOffsets and startingTimestamp contradict"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingOffsets and endingTimestamp contradict"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "startingTimestamp is past endingTimestamp"),
        (
            {
                "startingOffsets": '{"t": {"ledger": 2, "entry": 0}}',
                "endingOffsets": '{"t": {"ledger": 1, "entry": 9, "batch": 1}}',
            },
            f"startingOffsets is past endingOffsets for {T}: 2:0 and 1:9:1",
        ),
        ({"readOffloaded": "auto"}, "readOffloaded needs offloadStorage, and adminUrl"),
        ({"offloadStorage": "/x"}, "offloadStorage has no meaning unless readOffloaded"),
        (STORE | {"readCompacted": "true"}, "readOffloaded and readCompacted contradict"),
        (STORE | {"maxRecordsPerPartition": "5"}, "readOffloaded and maxRecordsPerPartition"),
    ],
)
def test_ranges_refused(options, sentence):
    assert refusal({**URL, "topic": "t", **options}).startswith(sentence)


def test_a_stream_may_start_at_latest_and_does_not_end_there():
    assert read(STREAM, startingOffsets="latest").starting_offsets.everywhere == LATEST
    assert refusal({**URL, "topic": "t", "endingOffsets": "latest"}, STREAM) == (
        "endingOffsets: latest is no end of a stream: use Trigger.AvailableNow, or name positions"
    )


# -- security


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"authToken": SECRET, "authTokenFile": "/f"}, "authToken and authTokenFile contradict each other"),
        ({"authToken": SECRET, "authPlugin": "m:f"}, "authToken and authPlugin contradict each other"),
        ({"authBasicUser": "u"}, "authBasicUser and authBasicPassword go together"),
        ({"authBasicPassword": SECRET}, "authBasicUser and authBasicPassword go together"),
        ({"authToken": ""}, "authToken='***': set, but empty"),
        ({"authToken": SECRET + "\n"}, "authToken='***': has spaces around it"),
        ({"clientKeyPassword": SECRET}, "clientKeyPassword needs clientCert"),
        ({"trustCertsPassword": SECRET}, "trustCertsPassword needs trustCerts"),
        ({"authIssuerTrustCertsPassword": SECRET}, "authIssuerTrustCertsPassword needs authIssuerTrustCerts"),
        (
            {"trustCerts": "/c"},
            "trustCerts has no meaning without TLS: begin serviceUrl with pulsar+ssl://, or adminUrl with",
        ),
        ({"clientCert": "/c"}, "clientCert has no meaning without TLS"),
    ],
)
def test_security_refused(options, sentence):
    assert refusal({**URL, "topic": "t", **options}).startswith(sentence)


@pytest.mark.parametrize("scope", [READ, STREAM, WRITE])
def test_certificates_may_be_only_for_the_admin_interface(scope):
    given = {**URL, "topic": "t", "adminUrl": "https://h:8443", "trustCerts": "/ca", "clientCert": "/c"}
    options = made(given, scope)
    assert not options.uses_tls
    assert TlsSettings.of(options).trust_certs == "/ca"
    assert authentication_of(options) is None, "no client certificate without TLS"
    assert refusal(given | {"adminUrl": "http://h:8080"}, scope).startswith("trustCerts has no meaning without TLS")


# -- pulsar-spark's names


def test_a_job_of_pulsar_spark_moves_by_its_format_name():
    ours = made(
        {
            "service.url": "pulsar+ssl://h",
            "admin.url": "http://h:8080",
            "topic": "t",
            "startingTime": "5",
            "endingTime": '{"t": 9}',
            "predefinedSubscription": "s",
            "subscriptionPrefix": "p",
            "pollTimeoutMs": "60000",
            "failOnDataLoss": "false",
            PLUGIN: JAVA + "AuthenticationToken",
            PARAMS: "token:" + SECRET,
            "pulsar.client.tlsTrustCertsFilePath": "/ca",
            "pulsar.client.tlsAllowInsecureConnection": "False",
            "waitingForNonExistedTopic": "false",
            "pulsar.client.tlsHostnameVerificationEnable": "false",
            "pulsar.client.proxyServiceUrl": "pulsar+ssl://p:4443",
            "pulsar.client.proxyProtocol": "SNI",
            "pulsar.client.connectionTimeoutMs": "500",
            "pulsar.client.keepAliveIntervalSeconds": "7",
            "pulsar.reader.receiverQueueSize": "10",
        }
    )
    assert ours == made(
        {
            "serviceUrl": "pulsar+ssl://h",
            "proxyServiceUrl": "pulsar+ssl://p:4443",
            "adminUrl": "http://h:8080",
            "topic": "t",
            "startingTimestamp": "5",
            "endingTimestamp": '{"t": 9}',
            "subscription": "s",
            "subscriptionPrefix": "p",
            "operationTimeout": "60s",
            "failOnDataLoss": "false",
            "authToken": SECRET,
            "trustCerts": "/ca",
            "tlsVerifyHostname": "false",
            "connectTimeout": "500ms",
            "keepAliveInterval": "7s",
            "receiverQueueSize": "10",
        }
    )


def test_stores_move_as_databricks_documents_them():
    authentication = {
        "authPluginClassName": JAVA + "AuthenticationKeyStoreTls",
        "authParams": f"keyStoreType:JKS,keyStorePath:/key.jks,keyStorePassword:{SECRET}",
    }
    theirs = {f"pulsar.{of}.{name}": text for of in ("client", "admin") for name, text in authentication.items()} | {
        "pulsar.client.useKeyStoreTls": "true",
        "pulsar.client.tlsTrustStoreType": "JKS",
        "pulsar.client.tlsTrustStorePath": "/trust.jks",
        "pulsar.client.tlsTrustStorePassword": "t",
    }
    ours = {"clientCert": "/key.jks", "clientKeyPassword": SECRET, "trustCerts": "/trust.jks"}
    assert made(TLS | {"topic": "t"} | theirs) == made(TLS | {"topic": "t", "trustCertsPassword": "t"} | ours)


@pytest.mark.parametrize(
    ("plugin", "params", "ours"),
    [
        ("AuthenticationToken", "token:" + SECRET, {"auth_token": SECRET}),
        ("AuthenticationToken", SECRET, {"auth_token": SECRET}),
        ("AuthenticationToken", json.dumps({"token": SECRET}), {"auth_token": SECRET}),
        ("AuthenticationToken", "file:///a%20b/t", {"auth_token_file": "/a b/t"}),
        ("AuthenticationToken", "file:/a/t", {"auth_token_file": "/a/t"}),
        (
            "AuthenticationBasic",
            json.dumps({"userId": "u", "password": SECRET}),
            {"auth_basic_user": "u", "auth_basic_password": SECRET},
        ),
        ("AuthenticationTls", "tlsCertFile:/c,tlsKeyFile:/k", {"client_cert": "/c", "client_key": "/k"}),
        (
            "AuthenticationKeyStoreTls",
            f"keyStoreType:JKS,keyStorePath:/c,keyStorePassword:{SECRET}",
            {"client_cert": "/c", "client_key_password": SECRET},
        ),
        (
            "oauth2.AuthenticationOAuth2",
            json.dumps({"issuerUrl": "https://i/", "privateKey": "file:///a%20b/c", "audience": "a", "scope": "s"}),
            {
                "auth_issuer_url": "https://i",
                "auth_credentials_file": "/a b/c",
                "auth_audience": "a",
                "auth_scope": "s",
            },
        ),
        (
            "oauth2.AuthenticationOAuth2",
            json.dumps({"issuerUrl": "https://i", "privateKey": CREDENTIALS_URL}),
            {"auth_issuer_url": "https://i", "auth_client_id": "c", "auth_client_secret": SECRET},
        ),
        ("AuthenticationDisabled", None, {}),
    ],
)
def test_java_authentication(plugin, params, ours):
    given = {**TLS, "topic": "t", PLUGIN: JAVA + plugin} | ({} if params is None else {PARAMS: params})
    options = made(given)
    names = [field.name for field in dataclasses.fields(options) if field.name.startswith(("auth_", "client_"))]
    assert {name: getattr(options, name) for name in names if getattr(options, name) is not None} == ours


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({PARAMS: SECRET}, f"{PLUGIN} and {PARAMS} go together: set both"),
        ({PLUGIN: JAVA + "AuthenticationToken"}, f"{PLUGIN} and {PARAMS} go together: set both"),
        (
            {PLUGIN: JAVA + "AuthenticationAthenz", PARAMS: SECRET},
            f"{PLUGIN}='{JAVA}AuthenticationAthenz': this authentication is not supported; supported are "
            "AuthenticationToken, AuthenticationBasic, AuthenticationTls, AuthenticationKeyStoreTls, "
            "oauth2.AuthenticationOAuth2, and a Python function of yours (authPlugin)",
        ),
        (
            {PLUGIN: JAVA + "oauth2.AuthenticationOAuth2", PARAMS: SECRET},
            f"{PARAMS}='***': expected issuerUrl and privateKey, as JSON",
        ),
        (
            {
                PLUGIN: JAVA + "oauth2.AuthenticationOAuth2",
                PARAMS: json.dumps({"issuerUrl": "https://h", "privateKey": f"data:application/json;base64,{SECRET}"}),
            },
            f"{PARAMS}='***': privateKey must be a file, or data:application/json;base64,",
        ),
        (
            {PLUGIN: JAVA + "AuthenticationBasic", PARAMS: SECRET},
            f"{PARAMS}='***': expected userId and password, as JSON",
        ),
        ({PLUGIN: JAVA + "AuthenticationBasic", PARAMS: f'{{"userId":1,"password":"{SECRET}"}}'}, f"{PARAMS}='***'"),
        ({PLUGIN: JAVA + "AuthenticationBasic", PARAMS: "{" + SECRET}, f"{PARAMS}='***'"),
        (
            {PLUGIN: JAVA + "AuthenticationToken", PARAMS: SECRET, "authToken": SECRET},
            f"authToken and {PARAMS} are the same option: set only one",
        ),
        (
            {"keepAliveInterval": "5s", "pulsar.client.keepAliveIntervalSeconds": "5"},
            "keepAliveInterval and pulsar.client.keepAliveIntervalSeconds are the same option",
        ),
        (
            {"pulsar.client.tlsAllowInsecureConnection": "true"},
            "pulsar.client.tlsallowinsecureconnection: certificates are always verified",
        ),
        ({"pulsar.client.useTls": "true"}, "pulsar.client.usetls: begin serviceUrl with pulsar+ssl:// instead"),
        (
            {"pulsar.client.numIoThreads": "4"},
            "pulsar.client.numiothreads: an option of pulsar-spark's Java client without effect here",
        ),
        ({"pulsar.producer.batchingEnabled": "true"}, "pulsar.producer.batchingenabled: an option of pulsar-spark"),
        ({"pulsar.admin.serviceUrl": "http://h"}, "pulsar.admin.serviceurl: use adminUrl"),
        ({"waitingForNonExistedTopic": "true"}, "waitingfornonexistedtopic: set waitForTopic to the longest wait"),
        ({OTHERS: "http://h"}, "failoverServiceUrls='http://h': that is the admin address"),
        ({OTHERS: "pulsar://h"}, "failoverServiceUrls: names the cluster of serviceUrl"),
        ({OTHERS: "pulsar://o", "adminUrl": "http://h"}, "failoverServiceUrls and adminUrl contradict each other"),
        (
            {OTHERS: "pulsar://o", "startingOffsets": '{"t": {"0": {"ledger": 1, "entry": 2}}}'},
            "failoverServiceUrls and the positions in startingOffsets contradict each other",
        ),
        ({"failoverDelay": "5s"}, "failoverDelay needs failoverServiceUrls"),
        (
            {OTHERS: "pulsar://o", "subscription": "s", "subscriptionType": "shared", "maxRows": "1"},
            "failoverServiceUrls is not for queues",
        ),
        ({"proxyServiceUrl": "pulsar+ssl://p"}, "proxyServiceUrl needs TLS, whose handshake names the broker"),
        ({"proxyServiceUrl": "pulsar://p:1"}, "proxyServiceUrl='pulsar://p:1': expected the address of one proxy"),
        ({"pulsar.failover.policy": "ORDER"}, "pulsar.failover.policy: set failoverServiceUrls, failoverDelay"),
        (
            {"pulsar.client.useKeyStoreTls": "false", "pulsar.client.tlsTrustStorePath": "/t"},
            "pulsar.client.useKeyStoreTls must be true if a tlsTrustStorePath",
        ),
        (
            {"pulsar.client.tlsTrustStoreType": "BCFKS"},
            "pulsar.client.tlstruststoretype: a store of type BCFKS cannot be read, only JKS or PKCS12",
        ),
        (
            {
                PLUGIN: JAVA + "AuthenticationKeyStoreTls",
                PARAMS: f"keyStoreType:JCEKS,keyStorePath:/k,keyStorePassword:{SECRET}",
            },
            f"{PARAMS}='***': a store of type JCEKS cannot be read",
        ),
        (
            {PLUGIN: JAVA + "AuthenticationToken", PARAMS: "token:a", PARAMS.replace("client", "admin"): "token:b"},
            "pulsar.admin.authparams: the admin API gets the authentication and certificates of pulsar.client.*",
        ),
        ({"allowDifferentTopicSchemas": "true"}, "allowdifferenttopicschemas: value has the published bytes unless"),
    ],
)
def test_options_that_cannot_be_migrated_have_a_remedy(options, sentence):
    assert refusal({**URL, "topic": "t", **options}).startswith(sentence)


@pytest.mark.parametrize(
    "read",
    [
        {"topic": "t"},
        {"topic": "t-partition-1"},
        {"topics": "a,persistent://public/default/t"},
        {"topicsPattern": "public/default/.*"},
    ],
)
def test_the_dead_letter_topic_must_not_be_read(read):
    dead = {"onCorrupt": "deadLetter", "deadLetterTopic": "t"}
    assert "deadLetterTopic: must differ from a topic that is read" in refusal(URL | read | dead)
    other = made(URL | read | dead | {"deadLetterTopic": "acme/prod/t", "createTopic": "true"})
    assert other.dead_letter_topic == "persistent://acme/prod/t"


def test_create_topic_is_ignored_in_a_read_without_a_topic_to_create(caplog):
    warn_of_ignored.cache_clear()
    made(URL | {"topic": "t", "createTopic": "true"})
    assert "option createTopic has no effect when reading without deadLetterTopic" in caplog.text
