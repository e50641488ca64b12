"""The extras of this package, by the modules that they bring.

The base install reads, plans and renders. What else a command needs is in an extra, which is named
where a module of it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from .diagnostics import Diagnostic
from .errors import BadInput

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "launch": ("httpx", "tritonclient", "grpc", "google", "hpack"),
    "rehearse": (
        *("pytriton", "numpy", "torch", "transformers", "tokenizers", "safetensors"),
        *("fastapi", "uvicorn", "prometheus_client", "pydantic"),
    ),
}


def missing(module: str | None) -> BadInput | None:
    """What to say of a module that could not be imported; `None` if it is of no extra."""
    first = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if first in modules:
            what = "is not installed, and this command needs it"
            remedy = f"install the extra {extra}, in a checkout with: pip install -e '.[{extra}]'"
            return BadInput(Diagnostic(f"Python module {module}", what, remedy))
    return None


def check(*modules: str) -> None:
    """Raises `BadInput` for those of the modules that are not installed."""
    faults = [missing(module) for module in modules if find_spec(module) is None]
    if found := [one for fault in faults if fault for one in fault.diagnostics]:
        raise BadInput(found)
