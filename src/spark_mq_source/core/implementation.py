"""The choice between the compiled and the interpreted implementation of a hot loop.

A compiled module ``_x_native`` has an interpreted twin ``_x_python``; the environment variable
``SPARK_MQ_SOURCE_IMPL=native`` or ``python`` forces one of them.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import Final

from spark_mq_source.core.errors import UnsupportedFeatureError
from spark_mq_source.core.stamps import warn_of_stale_modules

_ENVIRONMENT: Final = "SPARK_MQ_SOURCE_IMPL"
_SUFFIX: Final = "_python"


class Implementation:
    """The implementation of one hot loop.

    Args:
        asked: ``native``, ``python``, or empty for the best available; None to use the environment variable.
        compiled: the full name of the compiled module, if it is not ``_x_native`` beside ``_x_python``.

    Attributes:
        name: ``native`` or ``python``.

    Raises:
        ImportError: `asked` is invalid, or is ``native`` and the compiled module cannot be imported.
    """

    def __init__(self, twin: ModuleType, asked: str | None = None, *, compiled: str = "") -> None:
        if asked is None:
            asked = os.environ.get(_ENVIRONMENT, "")
        if asked not in ("", "native", "python"):
            raise ImportError(f"{_ENVIRONMENT}={asked}: expected native or python")
        self._twin, self._compiled = twin, compiled
        self.name, self.module = "python", twin
        self._fallback_reason = ""
        if asked == "python":
            return
        try:
            self.module = import_module(compiled or twin.__name__.removesuffix(_SUFFIX) + "_native")
            self.name = "native"
        except ImportError as error:
            if asked == "native":
                raise ImportError(f"{_ENVIRONMENT}=native, but the compiled loop cannot be loaded: {error}") from error
            self._fallback_reason = str(error)
        else:
            warn_of_stale_modules(self.module.__name__)

    def load(self, asked: str | None = None) -> ModuleType:
        """Return the module, or the one `asked` for; warn once, rather than at import, that the slow one is used."""
        if asked is not None:
            return Implementation(self._twin, asked, compiled=self._compiled).load()
        if self._fallback_reason:
            reason, self._fallback_reason = self._fallback_reason, ""
            warnings.warn(
                f"spark-mq-source runs without its compiled loops, several times slower ({reason}); "
                f"set {_ENVIRONMENT}=python to accept this",
                RuntimeWarning,
                stacklevel=3,
            )
        return self.module


def require_compiled(encoding: str, way: str) -> ModuleType:
    """Return the compiled module, without an interpreted twin, that will ``decode`` or ``encode`` values.

    Raises:
        UnsupportedFeatureError: the module cannot be imported, or the environment variable excludes compiled modules.

    Example:
        >>> require_compiled("XML", "decode")
        Traceback (most recent call last):
        ...
        spark_mq_source.UnsupportedFeatureError: ...
    """
    name = encoding.lower()
    module = f"spark_mq_source.values.{name}._{way}_native"
    instead = {
        "decode": f"read them as binary and decode them with Spark's from_{name}",
        "encode": f"encode them with Spark's to_{name} and write binary",
    }
    if os.environ.get(_ENVIRONMENT, "") == "python":
        reason = f"{_ENVIRONMENT}=python excludes it"
    else:
        try:
            found = import_module(module)
        except ImportError as error:
            reason = str(error)
        else:
            warn_of_stale_modules(module)
            return found
    raise UnsupportedFeatureError(
        f"typed columns of {encoding} need the compiled module {module}, which cannot be loaded ({reason}): install a "
        f"wheel of spark-mq-source for this Python and platform, or reinstall with a C compiler, or {instead[way]}"
    )
