"""The built site in a browser: its search finds every option, and its pages fit a phone.

Skipped without Chromium (Debian: ``apt-get install chromium``; elsewhere ``playwright install chromium``).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tools import docs

pytestmark = pytest.mark.timeout(300)

PHONE_PX = 390


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Does nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built from the checkout outside of it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(docs.CONFIGURATION, folder)
    shutil.copytree(docs.DOCS, folder / "docs")
    for name in ("src", "tools"):
        (folder / name).symlink_to(docs.ROOT / name)
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    handler = partial(QuietHandler, directory=folder / "build" / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, without a window."""
    with sync_playwright() as playwright:
        paths = [playwright.chromium.executable_path, shutil.which("chromium"), shutil.which("google-chrome")]
        path = next((path for path in paths if path and Path(path).exists()), None)
        if path is None:
            pytest.skip("no Chromium: install the package `chromium`, or run `playwright install chromium`")
        with playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser:
            yield browser


@pytest.mark.slow
def test_the_search_shows_the_section_of_every_option_without_scrolling(site: str, browser: Browser) -> None:
    missed = []
    with browser.new_page(viewport={"width": 1400, "height": 900}) as page:
        page.goto(site)
        search = page.locator("input[aria-label=Search]")
        search.wait_for(state="attached")
        page.keyboard.press("Control+k")
        for format_name in docs.FORMATS:
            for name in docs._options(format_name):
                page_name = "options.md" if name in docs._shared() else docs.PAGES[format_name]
                search.fill(name)
                section = f"/reference/{page_name.removesuffix('.md')}/?h={name}#{name.lower()}"
                try:
                    expect(page.locator(f"a[href$='{section}']")).to_be_in_viewport(ratio=1)
                except AssertionError:
                    missed.append(section)
    assert missed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_and_loads_nothing_from_elsewhere(
    site: str, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    problems: list[str] = []
    with browser.new_page(viewport={"width": PHONE_PX, "height": 800}, color_scheme=scheme) as page:
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(site) else problems.append(request.url))
        for path in docs.pages().keys() - {docs.README}:
            name = path.relative_to(docs.DOCS).with_suffix("").as_posix()
            page.goto(site + f"{name}/".removesuffix("index/"))
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE_PX:
                problems.append(f"{name} is {width} pixels wide")
    assert problems == []
