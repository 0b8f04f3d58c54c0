"""The site as a whole: its generated parts, its required sections, its links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from spark_mq_source.core import errors
from spark_mq_source.core.columns import Column, ColumnTable
from spark_mq_source.pulsar.options import PulsarOptions
from tests.docs.snippets import Snippet, snippets
from tools import docs


def test_generated_parts_match_the_code() -> None:
    assert [path for path, text in docs.pages().items() if docs.filled(text) != text] == []


def test_every_page_is_in_the_navigation_and_every_picture_on_a_page() -> None:
    assert list(docs.problems(docs.pages(), docs.CONFIGURATION.read_text(encoding="utf-8"))) == []


def test_missing_and_unused_files_are_reported() -> None:
    texts = {docs.DOCS / "a.md": "", docs.DOCS / "b.md": ""}
    found = list(docs.problems(texts, "nav:\n  - A: a.md\n  - Again: a.md\n  - C: c.md\n"))
    assert found[:3] == [
        "b.md: not in the navigation of mkdocs.yml",
        "c.md: in the navigation of mkdocs.yml, and no page",
        "a.md: twice in the navigation of mkdocs.yml",
    ]
    assert all(one.endswith("no page shows it") for one in found[3:])


def test_every_error_has_the_section_of_its_link() -> None:
    text = (docs.DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `(\w+)` \{ #(\w+) \}$", text, re.MULTILINE)
    assert sections == sorted((name, name.lower()) for name in errors.__all__)
    for name, anchor in sections:
        assert getattr(errors, name)("x").help_url == f"{errors.SITE}troubleshooting/#{anchor}"


PULSAR_SPARK = """
service.url admin.url topic topics topicsPattern startingOffsets startingTime endingOffsets endingTime
subscriptionPrefix predefinedSubscription maxBytesPerTrigger pollTimeoutMs failOnDataLoss
allowDifferentTopicSchemas waitingForNonExistedTopic topic.schema.class
pulsar.client.* pulsar.admin.* pulsar.reader.* pulsar.producer.* pulsar.failover.*
"""
"""The options of pulsar-spark's `PulsarOptions`."""
DATABRICKS = """
pulsar.client.authPluginClassName pulsar.client.authParams pulsar.client.useKeyStoreTls pulsar.client.tlsTrustStoreType
pulsar.client.tlsTrustStorePath pulsar.client.tlsTrustStorePassword
pulsar.admin.authPluginClassName pulsar.admin.authParams
"""
"""Further options that Databricks documents."""


def test_the_migration_page_names_every_option() -> None:
    page = (docs.DOCS / "migrate.md").read_text(encoding="utf-8")
    ours = {name for aliases in PulsarOptions.aliases.values() for name in aliases if name.startswith("pulsar.")}
    for name in (*PULSAR_SPARK.split(), *DATABRICKS.split(), *ours):
        group, _, short = name.rpartition(".")
        shown = short if group.startswith("pulsar.") and short != "*" else name
        assert re.search(rf"\n\|[^|]*`(?:{re.escape(group)}\.)?{re.escape(shown)}`[^\n]*\|", page), name


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


def anchors(page: Path) -> set[str]:
    """Return the ids of the headings of a built page."""
    return set(re.findall(r'<h[1-6] id="([^"]+)"', page.read_text(encoding="utf-8")))


def test_the_link_of_every_error_leads_to_a_heading_of_the_built_site(built_site: Path) -> None:
    links = [getattr(errors, name)("x").help_url for name in errors.__all__]
    for link in links:
        page, _, anchor = link.removeprefix(errors.SITE).partition("#")
        assert anchor in anchors(built_site / page / "index.html"), link


def test_readme_is_short_and_its_links_lead_to_pages_and_files_that_exist(built_site: Path) -> None:
    text = docs.README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 180
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        address, _, anchor = link.partition("#")
        file = docs.in_checkout(address)
        if address.startswith(errors.SITE):
            page = built_site / address.removeprefix(errors.SITE) / "index.html"
            assert page.exists(), link
            assert not anchor or anchor in anchors(page), link
        elif workflow := re.search(rf"^{docs.REPOSITORY}/actions/workflows/(\w+\.yml)", address):
            assert (docs.ROOT / ".github" / "workflows" / workflow[1]).exists(), link
        elif not address.startswith("https://img.shields.io/badge/"):
            assert file != address, f"{link} is relative, or leads elsewhere"
            assert (docs.ROOT / file).exists(), link


def test_the_addresses_of_the_project_are_the_same_everywhere() -> None:
    urls = tomllib.loads((docs.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    configuration = docs.CONFIGURATION.read_text(encoding="utf-8")
    assert urls["Documentation"] == errors.SITE
    assert f"\nsite_url: {errors.SITE}\nsite_description" in configuration
    assert f"\nrepo_url: {docs.REPOSITORY}\n" in configuration
    others = [".github/ISSUE_TEMPLATE/config.yml", "SECURITY.md", "CONTRIBUTING.md"]
    for text in [*urls.values(), *((docs.ROOT / name).read_text(encoding="utf-8") for name in others)]:
        links = re.findall(r"https://[\w.]*(?:github|readthedocs)[\w.]*/[\w/.-]*", text)
        assert [link for link in links if not link.startswith((docs.REPOSITORY, errors.SITE))] == []


@pytest.mark.parametrize("format_name", docs.FORMATS)
def test_every_option_has_one_section_with_a_link_in_the_index(format_name: str) -> None:
    index = (docs.DOCS / "reference" / "options.md").read_text(encoding="utf-8")
    own = (docs.DOCS / "reference" / docs.PAGES[format_name]).read_text(encoding="utf-8")
    for name in docs._options(format_name):
        anchor = f"{{ #{name.lower()} }}"
        assert (anchor in index) != (anchor in own), name
        assert f"(#{name.lower()})" in index or f"({docs.PAGES[format_name]}#{name.lower()})" in index


def test_options_with_the_same_name_are_in_the_same_section() -> None:
    for name in {name for each in docs.FORMATS for name in docs._options(each)}:
        sections = {docs._options(each)[name].section for each in docs.FORMATS if name in docs._options(each)}
        assert len(sections) == 1, (name, sections)


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
