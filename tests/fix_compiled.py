"""Skips of tests, and of examples in docstrings of src, that need the compiled modules, if these are missing."""

from __future__ import annotations

import doctest
import re
from collections.abc import Generator

import pytest

import spark_mq_source

NEEDS_COMPILED = re.compile(
    r"typed columns of (Avro|protobuf) need the compiled module|IMPL=native, but the compiled loop cannot be loaded"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that fails with the package's error about missing modules."""
    try:
        return (yield)
    except Exception as error:
        raised = error.exc_info[1] if isinstance(error, doctest.UnexpectedException) else error
        if NEEDS_COMPILED.search(str(raised)) and spark_mq_source.implementation() == "python":
            pytest.skip("the compiled modules are missing")
        raise
