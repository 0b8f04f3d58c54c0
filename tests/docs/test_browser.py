"""The built site in a browser: its search finds every option, and its pages fit a phone and a desktop.

Skipped without Chromium (Debian: ``apt-get install chromium``; elsewhere ``playwright install chromium``).
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tools import docs

pytestmark = pytest.mark.timeout(300)

PHONE_PX = 390
DESKTOP_PX = 1400
SCHEMES: Final[Sequence[Literal["light", "dark"]]] = ("light", "dark")

LAYOUT_PROBLEMS = """() => {
  const found = [], root = document.documentElement, all = query => [...document.querySelectorAll(query)]
  if (root.scrollWidth > root.clientWidth) found.push(`${root.scrollWidth} pixels wide`)
  for (const cell of all(".md-typeset :is(td, th)")) {
    const code = cell.querySelector("code")
    const alone = code && code.textContent === cell.textContent && !/\\s/.test(code.textContent)
    if (alone && code.getClientRects().length > 1)
      found.push(`broken cell: ${code.textContent}`)
  }
  const desktop = root.clientWidth > 1220
  if (desktop) {
    for (const table of all(".md-typeset table"))
      if (table.parentElement.scrollWidth > table.parentElement.clientWidth + 1)
        found.push(`table wider than the text: ${table.querySelector("tr").textContent}`)
    for (const bar of all(".md-sidebar--primary"))
      if (bar.getBoundingClientRect().left < 16) found.push("the navigation touches the edge")
  }
  return found
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Server of files that prints nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Do nothing."""


@pytest.fixture(scope="module")
def site(built_site: Path) -> Iterator[str]:
    """Serve the site, and return its address."""
    handler = partial(QuietHandler, directory=built_site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium without a window."""
    with sync_playwright() as playwright:
        paths = [playwright.chromium.executable_path, shutil.which("chromium"), shutil.which("google-chrome")]
        path = next((path for path in paths if path and Path(path).exists()), None)
        if path is None:
            pytest.skip("no Chromium: install the package `chromium`, or run `playwright install chromium`")
        with playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser:
            yield browser


def not_found(site: str, browser: Browser, sections: Iterable[tuple[str, str]]) -> list[str]:
    """Search for words; return the ends of the links that are not among the first results, without scrolling.

    Args:
        site: the address of the site.
        browser: the browser.
        sections: pairs of words, and the end of the link to the section that they must find.
    """
    missed = []
    with browser.new_page(viewport={"width": DESKTOP_PX, "height": 900}) as page:
        page.goto(site)
        search = page.locator("input[aria-label=Search]")
        search.wait_for(state="attached")
        page.keyboard.press("Control+k")
        for words, link in sections:
            search.fill(words)
            try:
                expect(page.locator(f"a[href$='{link}']")).to_be_in_viewport(ratio=1)
            except AssertionError:
                missed.append(link)
    return missed


@pytest.mark.slow
def test_the_search_shows_the_section_of_every_option_without_scrolling(site: str, browser: Browser) -> None:
    sections = []
    for format_name in docs.FORMATS:
        for name in docs._options(format_name):
            page_name = "options.md" if name in docs._shared() else docs.PAGES[format_name]
            sections.append((name, f"/reference/{page_name.removesuffix('.md')}/?h={name}#{name.lower()}"))
    assert not_found(site, browser, sections) == []


def test_the_search_finds_messages_of_spark(site: str, browser: Browser) -> None:
    sections = {
        "DATA_SOURCE_NOT_FOUND": "data_source_not_found",
        "Failed to find the data source": "data_source_not_found",
        "Skipping the lookup of Python Data Sources": "skipping-the-lookup",
        "UNSUPPORTED_DATA_SOURCE_SAVE_MODE": "unsupported_data_source_save_mode",
        "does not support Update mode": "update-mode",
        "checkpointLocation must be specified": "checkpointlocation-must-be-specified",
        "DATA_SOURCE_PUSHDOWN_DISABLED": "data_source_pushdown_disabled",
        "UNABLE_TO_INFER_SCHEMA": "unable_to_infer_schema",
        "Queries with streaming sources must be executed": "writestream-start",
        "WRITE_STREAM_NOT_ALLOWED": "write_stream_not_allowed",
        "Python worker failed to connect back": "python-worker-failed-to-connect-back",
    }
    assert not_found(site, browser, [(words, f"#{section}") for words, section in sections.items()]) == []


def test_every_page_fits_a_phone_and_a_desktop_and_loads_nothing_from_elsewhere(site: str, browser: Browser) -> None:
    problems: list[str] = []
    # The layout is the same in both schemes, and changing them takes longer than a check; the last one is kept.
    layouts = list(zip(SCHEMES, (PHONE_PX, DESKTOP_PX), strict=True))
    with browser.new_page() as page:
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(site) else problems.append(request.url))
        for path in docs.pages().keys() - {docs.README}:
            name = path.relative_to(docs.DOCS).with_suffix("").as_posix()
            page.goto(site + f"{name}/".removesuffix("index/"))
            for scheme, width in layouts:
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 800})
                problems += [f"{name}, {width}, {scheme}: {found}" for found in page.evaluate(LAYOUT_PROBLEMS)]
            layouts.reverse()
    assert problems == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("picture", ["flow.svg", "speed.svg"])
def test_a_picture_of_the_readme_has_the_colours_of_the_scheme(
    browser: Browser, picture: str, scheme: Literal["light", "dark"]
) -> None:
    with browser.new_page(color_scheme=scheme) as page:
        page.goto((docs.DOCS / "images" / picture).as_uri())
        paper, ink = page.evaluate("['rect', '.name'].map(name => getComputedStyle(document.querySelector(name)).fill)")
    light, dark = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
    assert (paper, ink) == {"light": (light, "rgb(36, 41, 47)"), "dark": (dark, "rgb(230, 237, 243)")}[scheme]
