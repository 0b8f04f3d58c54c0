"""Schemas of a topic's values, as the option `schema` declares them.

The broker stores a schema and checks that a producer's matches the topic's; it does not check messages. JSON and AVRO
values are both defined by an Avro schema (Pulsar binary protocol, Schema).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_mq_source.core.json_text import load_json_object
from spark_mq_source.values.avro.schema import avro_type_of

BYTES: Final = "BYTES"
STRING: Final = "STRING"
JSON: Final = "JSON"
AVRO: Final = "AVRO"

_EXPECTED: Final = (
    'expected BYTES, STRING, or {"type": "JSON", "schema": DEFINITION}, with AVRO for JSON where the values are so '
    "encoded, and an Avro schema as the DEFINITION"
)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """One schema.

    Attributes:
        type: `BYTES` (no schema), `STRING`, `JSON` or `AVRO`; empty if there is only a definition.
        definition: the Avro schema as JSON; empty for BYTES and STRING.
        properties: of the schema, for people.

    Example:
        >>> parse_schema('{"type": "AVRO", "schema": {"type": "record", "name": "F", "fields": []}}')
        ValueSchema(type='AVRO', definition='{"type":"record","name":"F","fields":[]}', properties=())
    """

    type: str
    definition: str = ""
    properties: tuple[tuple[str, str], ...] = ()


def parse_schema(text: str) -> ValueSchema:
    """Parse a schema: a name, the JSON for `pulsar-admin schemas upload`, or a bare Avro schema.

    Raises:
        ValueError: it is invalid; the message gives the reason.

    Example:
        >>> parse_schema("bytes").type, parse_schema("string").type
        ('BYTES', 'STRING')
    """
    name = text.strip().upper()
    if name in (BYTES, STRING):
        return ValueSchema(name)
    try:
        document = load_json_object(text)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if "schema" not in document:
        return ValueSchema("", _definition(text))
    unknown = sorted(set(document) - {"type", "schema", "properties", "name"})
    if unknown:
        raise ValueError(f"{', '.join(unknown)} has no meaning beside type, schema and properties")
    type_ = str(document.get("type")).upper()
    if type_ not in (JSON, AVRO):
        raise ValueError(_EXPECTED)
    properties = document.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise ValueError("expected texts as the properties")
    given = document["schema"]
    definition = _definition(given if isinstance(given, str) else json.dumps(given, separators=(",", ":")))
    return ValueSchema(type_, definition, tuple(properties.items()))


def _definition(text: str) -> str:
    # A broker does not answer a producer whose definition it cannot parse (seen on 4.0.8), so it is validated here.
    try:
        avro_type_of(load_json_object(text))
    except ValueError as error:
        raise ValueError(
            f"the definition is no Avro schema, which looks like "
            f'{{"type": "record", "name": "F", "fields": [{{"name": "a", "type": "string"}}]}}: {error}'
        ) from None
    return text
