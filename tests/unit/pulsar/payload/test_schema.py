"""The option `schema`."""

from __future__ import annotations

import json

import pytest

from spark_mq_source.pulsar.payload.schema import parse_schema


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        ('"string"', "expected a JSON object"),
        ("{", "not JSON: Expecting property name"),
        ('{"type": "rec", "name": "F"}', "the schema has the type 'rec', which is unknown"),
        ('{"type": "record", "fields": []}', "the schema is a record without a name"),
        ('{"type": "record", "name": "a-b", "fields": []}', "the schema is a record without a name of letters"),
        ('{"type": "record", "name": "F"}', "the schema is a record without fields"),
        ('{"type": "record", "name": "F", "fields": [{"type": "int"}]}', "has a field without a name"),
        ('{"type": "record", "name": "F", "fields": [{"name": "a"}]}', "the schema.a has no type"),
        (
            '{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "the schema has two fields a",
        ),
        ('{"type": "array"}', "the schema[] has no type"),
        ('{"type": "map", "values": "x"}', "the schema{} has the type 'x'"),
        ('{"type": "enum", "name": "E"}', "the schema is an enum without symbols"),
        ('{"type": "fixed", "name": "E"}', "the schema is a fixed without a size"),
    ],
)
def test_an_invalid_avro_schema_is_refused(definition, sentence):
    with pytest.raises(ValueError, match="the definition is no Avro schema") as caught:
        parse_schema(json.dumps({"type": "AVRO", "schema": definition}))
    assert sentence in str(caught.value)
