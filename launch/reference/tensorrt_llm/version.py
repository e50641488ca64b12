"""The engine release whose options and interface this stand-in follows."""

from __future__ import annotations

import os
from pathlib import Path

from builder.facts import release

RELEASE = os.environ.get("TENSORRT_LLM_REFERENCE_RELEASE") or release.newest_stable()

__version__ = f"{Path(RELEASE).name.removesuffix('.json')}+reference"
