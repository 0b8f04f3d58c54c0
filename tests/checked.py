"""Run tests on the checked build of the compiled modules: ``python -m pytest -p tests.checked tests/unit``.

Each write into a column asserts the kind and the bounds of what it writes into. If a failed assertion cannot raise,
it ends the process; its message goes to the runner's standard error, and pytest's traceback names the test.
"""

from __future__ import annotations

import os

import pytest

from tests import native


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Use the checked build before a module imports the compiled ones."""
    if native.has_compiler():
        native.use_modules(native.build())


def pytest_configure() -> None:
    # The real standard error: that of a test is captured, and lost if the process ends.
    os.environ["SPARK_MQ_SOURCE_CHECKED_REPORT"] = f"{os.getpid()}:{os.dup(2)}"


def pytest_report_header() -> str:
    if native.has_compiler():
        return f"compiled modules: the checked build in {native.CHECKED}"
    return "compiled modules: none; there is no C compiler for the checked build"
