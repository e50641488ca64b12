"""This host as a client: the calibration that is kept for it, by API."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder import __version__
from builder.diagnostics import Diagnostic
from builder.errors import BadInput

CPU_INFO = Path("/proc/cpuinfo")


def identity() -> dict[str, Any]:
    """What a calibration holds for; with another of these it is another host."""
    return {
        "host": platform.node(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "toolkit_version": __version__,
    }


def file() -> Path:
    """In the user's cache, one for each identity."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(json.dumps(identity()).encode()).hexdigest()[:12]
    return cache / "trtllm-deployment-toolkit" / f"calibration-{name}.json"


def calibration(named: Path | None, api: str) -> Mapping[str, Any] | None:
    """Of a named file, or of this host if it has one. Raises `BadInput` for a file that has none
    of this API, or belongs to another host."""
    path = named or file()
    if named is None and not path.is_file():
        return None
    document = _read(path)
    if named and document.get("identity") != identity():
        other = document.get("identity", {}).get("host")
        raise BadInput(Diagnostic(str(path), f"is of another host or version ({other})", REMEDY))
    found: Mapping[str, Any] | None = document.get("apis", {}).get(api)
    if named and found is None:
        raise BadInput(Diagnostic(str(path), f"says nothing of {api}", REMEDY))
    return found


REMEDY = "run: python -m launch bench calibrate"


def keep(found: Mapping[str, Mapping[str, Any]], named: Path | None) -> Path:
    """Write calibrations by API beside those that are kept already. Raises `BadInput`."""
    path = named or file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = _read(path).get("apis", {}) if path.is_file() else {}
        document = {"identity": identity(), "apis": {**before, **found}}
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return new.replace(path)
    except OSError as fault:
        what = f"cannot be written: {(fault.strerror or str(fault)).lower()}"
        raise BadInput(Diagnostic(str(path), what, "name another file by --output")) from None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        what = f"cannot be read: {(fault.strerror or str(fault)).lower()}"
        raise BadInput(Diagnostic(str(path), what, REMEDY)) from None
    except ValueError as fault:
        raise BadInput(Diagnostic(str(path), f"is no JSON: {fault}", REMEDY)) from None
    if not isinstance(document, dict):
        raise BadInput(Diagnostic(str(path), "is no calibration", REMEDY))
    return document


def _cpu() -> str:
    """The CPU's name where Linux tells one; ARM tells none there."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
