"""The built site, for the tests that inspect it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import docs


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built outside of the checkout."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(docs.CONFIGURATION, folder)
    shutil.copytree(docs.DOCS, folder / "docs")
    for name in ("src", "tools"):
        (folder / name).symlink_to(docs.ROOT / name)
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"
