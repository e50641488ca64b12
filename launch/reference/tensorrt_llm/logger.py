"""What the engine says of itself: the release that it follows, and its log on stderr."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from pathlib import Path

from builder.facts import release

# The engine release whose options and interface this stand-in follows.
RELEASE = os.environ.get("TENSORRT_LLM_REFERENCE_RELEASE") or release.newest_stable()

__version__ = f"{Path(RELEASE).name.removesuffix('.json')}+reference"

LEVELS = {
    "internal_error": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "verbose": logging.DEBUG,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}

logger = logging.getLogger("tensorrt_llm")


def configure(level: str | None = None) -> None:
    """Send the log to stderr, unless the program has its own handlers. May be called again."""
    if not logger.handlers:
        logger.setLevel(logging.INFO)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(
            logging.Formatter("[%(asctime)s] [reference] [%(levelname)s] %(message)s")
        )
        logger.addHandler(handler)
        logger.propagate = False
    if level:
        logger.setLevel(LEVELS[level])


@cache
def announce() -> None:
    """Say in the first line of the log what this is."""
    import torch

    configure()
    logger.info(
        "this is the reference engine of the deployment toolkit, not TensorRT-LLM: "
        "it computes with PyTorch %s on %s and checks options as release %s does",
        torch.__version__,
        torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU",
        RELEASE,
    )
