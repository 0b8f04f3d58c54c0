"""The options of pulsar-spark, StreamNative's connector, for jobs that change only the format name.

Aliases are in `PulsarOptions.aliases`. This module translates the other options, or refuses them with the name of our
equivalent; and it converts the offsets of a checkpoint.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote

from spark_mq_source.pulsar.offsets import (
    LATEST,
    Position,
    TopicPartition,
    encode_offsets,
    parse_message_id,
    parse_position,
    parse_topic,
)

_CLIENT: Final = "pulsar.client."
_ADMIN: Final = "pulsar.admin."
_PASSED_THROUGH: Final = (_CLIENT, "pulsar.reader.", "pulsar.consumer.", "pulsar.producer.")

_REFUSED: Final = {
    "pulsar.client.tlsallowinsecureconnection": (
        "certificates are always verified; set trustCerts to the authority that signed the broker's certificate"
    ),
    "pulsar.client.usetls": "begin serviceUrl with pulsar+ssl:// instead",
    "pulsar.client.authparammap": "use pulsar.client.authParams, or our authToken or authTokenFile",
    "pulsar.reader.subscriptionname": "use subscription",
    "pulsar.reader.subscriptionroleprefix": "use subscriptionPrefix",
    "pulsar.admin.serviceurl": "use adminUrl",
    "allowdifferenttopicschemas": "value has the published bytes unless valueFormat is set; remove this option",
    "waitingfornonexistedtopic": "set waitForTopic to the longest wait, such as 1h",
}

_REFUSED_STARTS: Final = {
    _ADMIN: "the admin API gets the authentication and certificates of pulsar.client.*; remove it",
    "pulsar.failover.": "set failoverServiceUrls, failoverDelay and switchBackDelay instead",
}

_OUR_BEHAVIOUR: Final = {
    "pulsar.client.tlsallowinsecureconnection": "false",
    "pulsar.client.proxyprotocol": "sni",
    "waitingfornonexistedtopic": "false",
}

_STORE_TYPES: Final = ("pulsar.client.tlstruststoretype", "pulsar.client.tlskeystoretype")
_STORE_PATHS: Final = ("pulsar.client.tlstruststorepath", "pulsar.client.tlskeystorepath")
_PLUGIN_KEY: Final = "pulsar.client.authpluginclassname"
_PARAMS_KEY: Final = "pulsar.client.authparams"
_PLUGIN_PACKAGE: Final = "org.apache.pulsar.client.impl.auth."


def from_pulsar_spark(
    offsets: Mapping[str, object], begins: Mapping[str, object] | None = None
) -> dict[str, object] | None:
    """Return the end of a micro-batch of pulsar-spark as that of a checkpoint of ours; None if it is another source's.

    Its batches end with a whole entry, also if the message id has an index in the entry's batch (3.1.1.4 to 3.4.1.3,
    `enteredEnd` and `isLastMessage`), and the earliest id is the end of an empty topic-partition.

    Args:
        offsets: the decoded JSON of `SpecificPulsarOffset`: a message id, as a list of bytes, by topic-partition.
        begins: the start of the micro-batch in the same form, if it is the first one of a query. A repeated batch reads
            the entry of these message ids, too (`markOffsetUserProvided`), but nothing if it ends with the same id.

    Raises:
        ValueError: a list is not a message id, or it is the latest, which says nothing about what was read.

    Example:
        >>> from_pulsar_spark({"persistent://public/default/t-partition-0": [8, 12, 16, 3, 24, 0]})["positions"]
        {'persistent://public/default/t-partition-0': {'ledger': 12, 'entry': 3, 'batch': -1}}
        >>> from_pulsar_spark({"logOffset": 4}) is None
        True
    """
    if not all(isinstance(value, list) for value in offsets.values()):
        return None
    positions = _by_topic_partition(offsets, parse_message_id)
    if LATEST in positions.values():
        raise ValueError("a batch ends with the latest message, which says nothing about what was read")
    if begins is None:
        return encode_offsets(positions)
    unread = _by_topic_partition(begins, parse_message_id).items() & positions.items()
    return encode_offsets(positions, _by_topic_partition(begins, parse_position) | dict(unread))


def _by_topic_partition(
    offsets: Mapping[str, object], parse: Callable[[object], Position]
) -> dict[TopicPartition, Position]:
    return {TopicPartition.parse(parse_topic(name)): parse(value) for name, value in offsets.items()}


def translate(given: dict[str, str], names: Iterable[str], *, is_read: bool) -> Iterator[str]:
    """Translate options that are not mere aliases, in place; yield one sentence for each unsupported option.

    Args:
        given: the options, by their names in lower case.
        names: all accepted names, including aliases.
        is_read: whether they are options of a read.
    """
    if is_read and given.get("columns", "").lower() == "pulsar-spark":
        is_raw = given.pop("allowdifferenttopicschemas", "").lower() == "true"
        given.setdefault("valueformat", "raw" if is_raw else "auto")
    for key in [key for key in given if key.startswith(_ADMIN)]:
        # The admin API gets the client's authentication and certificates anyway.
        if given[key] == given.get(_CLIENT + key.removeprefix(_ADMIN)):
            del given[key]
    yield from _translate_authentication(given)
    yield from _translate_stores(given)
    seconds = given.pop("pulsar.client.keepaliveintervalseconds", None)
    if seconds is not None:
        if "keepaliveinterval" in given:
            yield "keepAliveInterval and pulsar.client.keepAliveIntervalSeconds are the same option: set only one"
        given["keepaliveinterval"] = f"{seconds}s"
    micros = given.pop("pulsar.producer.batchingmaxpublishdelaymicros", None)
    if micros is not None:
        if "batchingmaxpublishdelay" in given:
            yield (
                "batchingMaxPublishDelay and pulsar.producer.batchingMaxPublishDelayMicros are the same option: "
                "set only one"
            )
        # Our minimum is 1 ms. A text that is not a number is passed on, and refused there.
        given["batchingmaxpublishdelay"] = str(max(1, int(micros) // 1000)) if micros.isdecimal() else micros
    for key, text in _OUR_BEHAVIOUR.items():
        if given.get(key, "").lower() == text:
            del given[key]
    accepted = {name.lower() for name in names}
    for key in list(given):
        reason = _REFUSED.get(key) or next(
            (why for start, why in _REFUSED_STARTS.items() if key.startswith(start)), None
        )
        if reason is not None:
            del given[key]
            yield f"{key}: {reason}"
        elif key.startswith(_PASSED_THROUGH) and key not in accepted:
            del given[key]
            yield f"{key}: an option of pulsar-spark's Java client without effect here; remove it"


def _translate_stores(given: dict[str, str]) -> Iterator[str]:
    """Remove what a file of a store shows by itself: whether there is one, and its type."""
    if given.pop("pulsar.client.usekeystoretls", "true").lower() != "true" and not given.keys().isdisjoint(
        _STORE_PATHS
    ):
        yield "pulsar.client.useKeyStoreTls must be true if a tlsTrustStorePath or tlsKeyStorePath is set"
    for key in _STORE_TYPES:
        try:
            _check_store_type(given.pop(key, "JKS"))
        except ValueError as error:
            yield f"{key}: {error}"


def _check_store_type(text: str) -> None:
    if text.upper() not in ("JKS", "PKCS12"):
        raise ValueError(f"a store of type {text} cannot be read, only JKS or PKCS12: convert it with keytool")


def _translate_authentication(given: dict[str, str]) -> Iterator[str]:
    """Translate the Java plug-in class and its parameters, which no error message shows."""
    plugin, params = given.pop(_PLUGIN_KEY, None), given.pop(_PARAMS_KEY, None)
    if plugin is None and params is None:
        return
    if plugin is None or params is None:
        if plugin is None or plugin.removeprefix(_PLUGIN_PACKAGE) != "AuthenticationDisabled":
            yield "pulsar.client.authPluginClassName and pulsar.client.authParams go together: set both"
        return
    known: dict[str, Callable[[str], dict[str, str]]] = {
        "AuthenticationToken": _token,
        "AuthenticationBasic": partial(_renamed, {"userId": "authBasicUser", "password": "authBasicPassword"}),
        "AuthenticationTls": partial(_renamed, {"tlsCertFile": "clientCert", "tlsKeyFile": "clientKey"}),
        "AuthenticationKeyStoreTls": _key_store,
        "oauth2.AuthenticationOAuth2": _oauth2,
    }
    parse = known.get(plugin.removeprefix(_PLUGIN_PACKAGE))
    if parse is None:
        yield (
            f"pulsar.client.authPluginClassName={plugin!r}: this authentication is not supported; "
            f"supported are {', '.join(known)}, and a Python function of yours (authPlugin)"
        )
        return
    try:
        ours = parse(params)
    except ValueError as error:
        yield f"pulsar.client.authParams='***': {error}"
        return
    for name, value in ours.items():
        if name.lower() in given:
            yield f"{name} and pulsar.client.authParams are the same option: set only one"
        given[name.lower()] = value


def _token(params: str) -> dict[str, str]:
    if params.startswith("file:"):
        return {"authTokenFile": unquote(re.sub(r"\Afile:(//(?=/))?", "", params))}
    if params.lstrip().startswith("{"):
        return {"authToken": _fields(params, "token")["token"]}
    return {"authToken": params.removeprefix("token:")}


def _renamed(names: Mapping[str, str], params: str) -> dict[str, str]:
    """Return parameters by our names, which `names` has by theirs."""
    fields = _fields(params, *names)
    return {ours: fields[theirs] for theirs, ours in names.items()}


def _key_store(params: str) -> dict[str, str]:
    fields = _fields(params, "keyStorePath", "keyStorePassword")
    _check_store_type(fields.get("keyStoreType", "JKS"))
    return {"clientCert": fields["keyStorePath"], "clientKeyPassword": fields["keyStorePassword"]}


def _oauth2(params: str) -> dict[str, str]:
    fields = _fields(params, "issuerUrl", "privateKey")
    if fields.get("type", "client_credentials") != "client_credentials":
        raise ValueError("type must be client_credentials")
    names = {"issuerUrl": "authIssuerUrl", "audience": "authAudience", "scope": "authScope"}
    ours = {ours: fields[theirs] for theirs, ours in names.items() if fields.get(theirs)}
    key = fields["privateKey"]
    if not key.startswith("data:"):
        return ours | {"authCredentialsFile": unquote(re.sub(r"\A(?:file:(//(?=/))?)?", "", key))}
    try:
        document = json.loads(base64.b64decode(key.partition("base64,")[2], validate=True))
        return ours | {"authClientId": document["client_id"], "authClientSecret": document["client_secret"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            "privateKey must be a file, or data:application/json;base64, with JSON that contains client_id and "
            "client_secret"
        ) from None


def _fields(params: str, *names: str) -> Mapping[str, str]:
    """Return the named parameters, from JSON or ``name:value,name:value``, the two forms of the Java client."""
    if params.lstrip().startswith("{"):
        try:
            document = json.loads(params)
        except (ValueError, RecursionError):
            document = None
    else:
        document = dict(pair.split(":", 1) for pair in params.split(",") if ":" in pair)
    if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in names):
        raise ValueError(f"expected {' and '.join(names)}, as JSON or as name:value,name:value")
    return document
