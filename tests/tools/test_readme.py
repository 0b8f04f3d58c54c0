"""The tables that README.md takes from the code."""

from __future__ import annotations

import pytest

from spark_mq_source.core.columns import Column, ColumnTable
from tools import readme


def test_readme_has_every_table_as_the_code_has_it() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.filled(text) == text


def test_a_missing_table_is_an_error() -> None:
    text = readme.README.read_text(encoding="utf-8").replace("<!-- columns:nsq -->", "")
    with pytest.raises(ValueError, match=r"and should have .*'columns:nsq'"):
        readme.filled(text)


def test_columns_as_markdown() -> None:
    table = ColumnTable(
        Column("a", ("struct<b:int,c:int>", "string"), ("string",), by_default=False, note="n", write_note="w"),
        Column("d", ("int",)),
    )
    assert readme.read_columns(table) == (
        "| column | type | by default | |\n| --- | --- | --- | --- |\n"
        "| `a` | struct<b: int, c: int> or string | | n |\n| `d` | int | yes | |\n"
    )
    assert readme.written_columns(table) == "| column | type | |\n| --- | --- | --- |\n| `a` | string | w |\n"
