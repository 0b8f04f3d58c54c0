"""The site as a whole: what is generated, what must be there, and that it is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_mq_source.core import errors
from spark_mq_source.core.columns import Column, ColumnTable
from tests.docs.snippets import Snippet, snippets
from tools import docs


def test_the_pages_are_as_the_code_has_them() -> None:
    assert [path for path, text in docs.pages().items() if docs.filled(text) != text] == []


def test_every_page_is_in_the_navigation_and_every_picture_on_a_page() -> None:
    assert list(docs.problems(docs.pages(), docs.CONFIGURATION.read_text(encoding="utf-8"))) == []


def test_what_is_missing_or_unused_is_told() -> None:
    texts = {docs.DOCS / "a.md": "", docs.DOCS / "b.md": ""}
    found = list(docs.problems(texts, "nav:\n  - A: a.md\n  - Again: a.md\n  - C: c.md\n"))
    assert found[:3] == [
        "b.md: not in the navigation of mkdocs.yml",
        "c.md: in the navigation of mkdocs.yml, and no page",
        "a.md: twice in the navigation of mkdocs.yml",
    ]
    assert all(one.endswith("no page shows it") for one in found[3:])


def test_every_error_has_a_section_that_its_link_leads_to() -> None:
    text = (docs.DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `(\w+)` \{ #(\w+) \}$", text, re.MULTILINE)
    assert sections == sorted((name, name.lower()) for name in errors.__all__)
    for name, anchor in sections:
        assert getattr(errors, name)("x").help_url == f"{errors.SITE}troubleshooting/#{anchor}"


def test_the_links_of_errors_lead_to_this_site() -> None:
    assert f"\nsite_url: {errors.SITE}\n" in docs.CONFIGURATION.read_text(encoding="utf-8")


def test_columns_as_markdown() -> None:
    table = ColumnTable(
        Column("a", ("struct<b:int,c:int>", "string"), ("string",), by_default=False, note="n", write_note="w"),
        Column("d", ("int",)),
    )
    assert docs.read_columns(table) == (
        "| column | type | by default | |\n| --- | --- | --- | --- |\n"
        "| `a` | `struct<b: int, c: int>` or `string` | | n |\n| `d` | `int` | yes | |\n"
    )
    assert docs.written_columns(table) == "| column | type | |\n| --- | --- | --- |\n| `a` | `string` | w |\n"


def test_readme_fits_two_screens_and_its_links_lead_somewhere() -> None:
    text = docs.README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 220
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", text)
    assert [path for path, _ in links if not (docs.ROOT / path).exists()] == []
    for path, anchor in links:
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (docs.ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("format_name", docs.FORMATS)
def test_every_option_has_one_section_that_the_index_leads_to(format_name: str) -> None:
    index = (docs.DOCS / "reference" / "options.md").read_text(encoding="utf-8")
    own = (docs.DOCS / "reference" / docs.PAGES[format_name]).read_text(encoding="utf-8")
    for name in docs._options(format_name):
        anchor = f"{{ #{name.lower()} }}"
        assert (anchor in index) != (anchor in own), name
        assert f"(#{name.lower()})" in index or f"({docs.PAGES[format_name]}#{name.lower()})" in index


def test_snippets_of_a_page() -> None:
    page = Path(__file__).with_name("page.txt").read_text(encoding="utf-8")
    assert snippets(page) == [
        Snippet(3, "python", "print(1)\n", "1\n"),
        Snippet(11, "python", "x = 1\n"),
        Snippet(15, "python", "kept\nnew\n"),
        Snippet(21, "console", "spark-mq a \\\n  b\n", "output\n"),
        Snippet(21, "console", "spark-mq c\n"),
    ]


def test_a_block_of_an_unknown_language_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"line 1: .* block of cobol"):
        snippets("```cobol\nx\n```\n")
