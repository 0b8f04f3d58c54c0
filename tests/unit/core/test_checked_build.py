"""The assertions of the checked build: each rule by which the loops write into columns is broken once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import native

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C compiler")

PROGRAM = """
from tests import native
native.use_modules(native.CHECKED / "lib")
from spark_mq_source.core import _checks as checks
"""
NODES = ("int", "long", "double", "float", "bool", "bytes", "list", "struct")
# An encoder writes the bits of a float as an int, those of a double as a long.
TAKEN = {
    "int": ["int", "float"],
    "long": ["long", "double"],
    "float": ["float"],
    "double": ["double"],
    "fixed": ["int", "long", "double", "float"],
    "bool": ["bool"],
    "bytes": ["bytes"],
    "list": ["list"],
    "struct": [],  # its fields have no value yet
}


@pytest.fixture(scope="module", autouse=True)
def _build() -> None:
    native.build()


def run(code: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM + code
    return subprocess.run([sys.executable, "-c", program], cwd=native.ROOT, capture_output=True, text=True, check=False)


def test_a_value_is_written_only_to_a_node_of_its_kind() -> None:
    done = run(f"""
for what in {list(TAKEN)}:
    taken = []
    for number, node in enumerate({NODES}):
        try:
            checks.put_into_node(what, number)
            taken.append(node)
        except AssertionError as error:
            assert str(error).startswith("checked build: "), error
    print(what, *taken)
""")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [" ".join([what, *nodes]) for what, nodes in TAKEN.items()]


RAISED = {
    "leave_item_without_list()": "checked build: a value is unfinished",
    "take_unfinished_struct()": "checked build: the fields of a struct have other lengths than the struct",
    "take_text_that_is_none()": "Invalid UTF8 sequence at string index 0",
    "end_bytes_beyond_room(257)": "checked build: bytes are written for which no room was reserved",
    "end_bytes_beyond_room(-1)": "checked build: bytes are written for which no room was reserved",
    "Probe().break_rule('short')": "checked build: a column has fewer rows than its batch",
    "Forgetful().use()": "column small is not filled by this build of the loops; run `make native` in a checkout, "
    "or install the package again",
}
ENDED = {
    "width": "a row is written with another width than the column's",
    "capacity": "a row is written for which no room was reserved",
    "gap": "a row is written behind one that is not written",
    "bytes": "bytes are written for which no room was reserved",
    "offset": "an offset is less than the one before",
    "nulls": "NULL is written into a row twice",
    "read": "a row is read that is not written",
}


def test_a_broken_rule_is_an_error() -> None:
    done = run(f"""
for call in {list(RAISED)}:
    try:
        eval(call, vars(checks))
    except Exception as error:
        print(error)
""")
    assert done.stderr == ""
    assert done.stdout.splitlines() == list(RAISED.values())


def test_a_broken_rule_ends_the_process_where_no_error_can_be_raised() -> None:
    done = run(f"""
import os
for rule in {list(ENDED)}:
    child = os.fork()
    if not child:
        checks.Probe().break_rule(rule)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 6
""")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"spark-mq-source, checked build: {said}" for said in ENDED.values()]


def test_rows_that_keep_the_rules_are_accepted() -> None:
    done = run("print([column.to_pylist() for column in checks.Probe().fill(2)])")
    assert (done.stdout, done.stderr) == ("[[0, 1], [0, 1], ['abc', 'abc']]\n", "")
