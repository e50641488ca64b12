"""Nested engine options judged against a release: every fault with its path and remedy.

Values are judged as the engine's own validation does: `"3"` is 3, 1 is true, and a key that the
release does not know is refused at any depth.
"""

from __future__ import annotations

from .judge import problems
from .normalised import normalise
from .remedies import former_options
from .values import WRONG_VALUES

__all__ = ["WRONG_VALUES", "former_options", "normalise", "problems"]
