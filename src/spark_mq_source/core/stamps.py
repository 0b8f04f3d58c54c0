"""Detection of compiled modules that are older than their sources, in a checkout.

`setup.py` puts a stamp into each compiled module: the digest and the names of its sources.
"""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parents[2]
"""The folder of the package."""

_STAMP: Final = re.compile(rb"spark-mq-source stamp: ([0-9a-f]{64}) ([^\0]+)\0")

_compared: set[str] = set()


def warn_of_stale_modules(imported: str) -> None:
    """Warn of each imported compiled module that is older than its sources; not in an installed package."""
    if imported in _compared or not (SOURCES.parent / "setup.py").exists():
        return
    names = [name for name in list(sys.modules) if name.startswith("spark_mq_source.") and name.endswith("_native")]
    for name in sorted({*names} - _compared):
        _compared.add(name)
        path = Path(str(sys.modules[name].__file__))
        if is_stale(path, SOURCES):
            warnings.warn(
                f"{path} is not built from the sources beside it; run `make native`", RuntimeWarning, stacklevel=2
            )


def is_stale(module: Path, sources: Path) -> bool:
    """Return whether a compiled module has no stamp, or one that differs from the sources in a folder."""
    stamp = _STAMP.search(module.read_bytes())
    if stamp is None:
        return True
    paths = [sources / name for name in stamp[2].decode().split()]
    if not all(path.exists() for path in paths):
        return True
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    return digest != stamp[1].decode()
