"""The wheels: for every supported Python, and whole."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest

from setup import HOT_MODULES
from tools import wheels

SUFFIX = ".cpython-312-aarch64-linux-gnu.so"
ARM = wheels.PLATFORMS["linux_aarch64"]
HEAD = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00"
X86_64 = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"


def wheel(folder: Path, heads: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "one.whl", "w") as archive:
        for module, head in heads.items():
            archive.writestr(module.replace(".", "/") + SUFFIX, head + b"rest")
    return folder / "one.whl"


def test_there_is_a_wheel_for_every_python_that_the_package_supports():
    project = tomllib.loads((wheels.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [text.removeprefix("Programming Language :: Python :: 3.") for text in project["classifiers"]]
    assert [f"3.{minor}" for minor in named if minor.isdecimal()] == list(wheels.PYTHONS)


def test_a_wheel_with_all_modules_for_its_platform_is_accepted(tmp_path: Path):
    wheels._check(wheel(tmp_path, dict.fromkeys(HOT_MODULES, HEAD)), SUFFIX, ARM)


def test_a_wheel_without_a_compiled_module_is_refused(tmp_path: Path):
    one = wheel(tmp_path, dict.fromkeys(HOT_MODULES[1:], HEAD))
    with pytest.raises(RuntimeError, match=r"one.whl: lacks \['spark_mq_source/core/_columns_native"):
        wheels._check(one, SUFFIX, ARM)


def test_a_wheel_with_a_module_of_another_machine_is_refused(tmp_path: Path):
    one = wheel(tmp_path, {**dict.fromkeys(HOT_MODULES, HEAD), HOT_MODULES[3]: X86_64})
    with pytest.raises(RuntimeError, match=r"values/avro/_decode_native.* is not for aarch64-linux-gnu"):
        wheels._check(one, SUFFIX, ARM)
