"""The demo's output."""

from __future__ import annotations

__all__ = ["say"]


def say(what: str) -> None:
    """Print without buffering."""
    print(what, flush=True)
