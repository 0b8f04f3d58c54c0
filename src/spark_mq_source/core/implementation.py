"""Which of two implementations of a hot loop runs: the compiled one, or its twin written for the interpreter.

A compiled module ``_x_native`` stands beside its twin ``_x_python``; ``SPARK_MQ_SOURCE_IMPL=native`` or ``python`` in
the environment asks for one of them.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import Final

_ENVIRONMENT: Final = "SPARK_MQ_SOURCE_IMPL"
_SUFFIX: Final = "_python"


class Implementation:
    """The implementation of one hot loop.

    Args:
        twin: the module written for the interpreter.
        asked: ``native``, ``python``, or empty for the best there is; None for what the environment says.

    Attributes:
        name: ``native`` or ``python``.
        module: the module.

    Raises:
        ImportError: `asked` is no implementation, or is ``native`` and there is none.
    """

    def __init__(self, twin: ModuleType, asked: str | None = None) -> None:
        if asked is None:
            asked = os.environ.get(_ENVIRONMENT, "")
        if asked not in ("", "native", "python"):
            raise ImportError(f"{_ENVIRONMENT}={asked}: expected native or python")
        self.name, self.module = "python", twin
        self._fallback_reason = ""
        if asked == "python":
            return
        try:
            self.module = import_module(twin.__name__.removesuffix(_SUFFIX) + "_native")
            self.name = "native"
        except ImportError as error:
            if asked == "native":
                raise ImportError(f"{_ENVIRONMENT}=native, but the compiled loop cannot be loaded: {error}") from error
            self._fallback_reason = str(error)

    def warn_of_fallback(self) -> None:
        """Say once, when the first loop runs and not when the package is imported, that it is the slow one."""
        if self._fallback_reason:
            reason, self._fallback_reason = self._fallback_reason, ""
            warnings.warn(
                f"spark-mq-source runs without its compiled loops, several times slower ({reason}); "
                f"set {_ENVIRONMENT}=python to accept this",
                RuntimeWarning,
                stacklevel=3,
            )


def name_of_all(*implementations: Implementation) -> str:
    """``native`` if all of them are the compiled ones; ``python`` if one is a twin.

    Example:
        >>> from spark_mq_source.nsq.payload import _encode_python, _messages_python
        >>> name_of_all(Implementation(_messages_python), Implementation(_encode_python, "python"))
        'python'
    """
    return "native" if all(one.name == "native" for one in implementations) else "python"
