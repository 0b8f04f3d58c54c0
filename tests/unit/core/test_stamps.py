from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from spark_mq_source.core import stamps
from tests import native

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C compiler")


@pytest.mark.parametrize("name", native.hot_modules())
def test_each_compiled_module_is_built_from_the_sources_beside_it(name: str) -> None:
    assert not stamps.is_stale(Path(str(import_module(name).__file__)), stamps.SOURCES)


@pytest.mark.parametrize(
    "changed",
    [
        "values/json/_decode_native.py",
        "values/json/_decode_native.pxd",
        "values/_tree_native.pxd",
        "core/_checked.pxd",
    ],
)
def test_a_module_is_stale_if_a_source_changes_or_is_missing(changed: str, tmp_path: Path) -> None:
    module = Path(str(import_module("spark_mq_source.values.json._decode_native").__file__))
    copy = tmp_path / "spark_mq_source"
    for room in ("core", "values"):
        shutil.copytree(stamps.SOURCES / "spark_mq_source" / room, copy / room)
    assert not stamps.is_stale(module, tmp_path)
    path = copy / changed
    text = path.read_bytes()
    path.write_bytes(text + b" ")
    assert stamps.is_stale(module, tmp_path)
    path.unlink()
    assert stamps.is_stale(module, tmp_path)
    path.write_bytes(text)
    assert not stamps.is_stale(module, tmp_path)


def test_a_module_without_a_stamp_is_stale(tmp_path: Path) -> None:
    module = tmp_path / "module.so"
    module.write_bytes(b"\x7fELF")
    assert stamps.is_stale(module, stamps.SOURCES)


def test_a_stale_module_is_a_warning_with_the_build_command_only_in_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import_module("spark_mq_source.values.json._decode_native")
    monkeypatch.setattr(stamps, "_compared", set(native.hot_modules()) - {"spark_mq_source.values.json._decode_native"})
    monkeypatch.setattr(stamps, "SOURCES", tmp_path / "src")
    stamps.warn_of_stale_modules("spark_mq_source.values.json._decode_native")
    (tmp_path / "setup.py").touch()
    with pytest.warns(RuntimeWarning, match=r"_decode_native\S* is not built from .*; run `make native`"):
        stamps.warn_of_stale_modules("spark_mq_source.values.json._decode_native")
