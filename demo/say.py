"""Telling whoever watches the demo."""

from __future__ import annotations

__all__ = ["say"]


def say(what: str) -> None:
    """Prints at once: the reader waits for it."""
    print(what, flush=True)
