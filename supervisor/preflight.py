"""What can be known on a compute node before the long job: folders, programs, ports, steps."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from .checks import check_ports
from .network import environment_of, findings, read
from .slurm import COMMAND_TIMEOUT_S, Cluster
from .spec import Spec
from .state import Json, is_there, parse_json, read_json

# A header has 8 bytes of length and, by its specification, at most 100 MB of JSON; those of real
# checkpoints have less than a hundredth. A list or an object takes twenty times its text in memory.
HEADER_BYTES = 16 << 20
INDEX_BYTES = 32 << 20
MOST_NESTED = 1_000_000
MOST_FILES = 10_000  # of a checkpoint
MOST_SHOWN = 5  # of the errors of a checkpoint

# Its name, whether it passed (`None`: it could not be made), and what it found.
Check = tuple[str, Optional[bool], str]


def preflight_checks(spec: Spec, cluster: Cluster) -> Iterator[Check]:
    """What can be known on a compute node before the service's job, by `preflight` of the spec."""
    wanted: Json = spec.raw.get("preflight") or {}
    slurm = cluster.command("srun", "--version").stdout.strip()
    python = ".".join(map(str, sys.version_info[:3]))
    yield "versions", bool(slurm), f"{slurm or 'no srun'}, Python {python}"
    try:
        error = bundle_error(spec)
    except OSError as fault:
        error = f"cannot be read: {fault}"
    yield "bundle", error is None, error or "its files are those of the manifest"
    for image in (wanted.get("images") or {}).values():
        if image.startswith(("/", ".")):  # else the name in a registry: a step will show
            yield "image", is_there(Path(image)), image
    for mount in wanted.get("mounts") or []:
        yield "mount", is_there(Path(mount)), mount
    for folder in map(Path, (wanted.get("checkpoints") or {}).values()):
        errors = checkpoint_errors(folder)
        more = [f"and {len(errors) - MOST_SHOWN} more"] if len(errors) > MOST_SHOWN else []
        what = "; ".join([*errors[:MOST_SHOWN], *more]) or f"{folder} is complete"
        yield "checkpoint", not errors, what
    if not wanted.get("images"):  # which have their own programs
        for program in wanted.get("programs") or []:
            found = shutil.which(program)
            yield "program", found is not None, f"{program}: {found or 'not on the path'}"
    gpus = int(wanted.get("gpus") or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    yield "gpus", len(visible) >= gpus, f"{len(visible)} on {cluster.node}, {gpus} wanted"
    ports = wanted.get("ports") or []
    taken = check_ports(cluster.node, ports)["taken"]
    what = f"in use: {', '.join(map(str, taken))}" if taken else f"free: {ports}"
    yield "ports", not taken, what
    yield from _check_network(spec.raw.get("network") or {}, cluster.node)
    cluster.timeout_s = float(wanted.get("timeout_s") or COMMAND_TIMEOUT_S)
    yield from _check_steps(spec, cluster)


def bundle_error(spec: Spec, digest: str | None = None) -> str | None:
    """What is wrong with the files of the bundle, by its manifest, whose digest may be known.

    Raises `OSError` where they cannot be read, which may pass.
    """
    try:
        manifest = read_json(spec.manifest)
        if manifest is None:
            return f"{spec.manifest} is missing or damaged"
        if digest and file_digest(spec.manifest) != digest:
            return f"{spec.manifest} is of another bundle than was submitted"
        wrong = [
            name
            for name, row in manifest.get("files", {}).items()
            if not (spec.bundle / name).is_file()
            or file_digest(spec.bundle / name) != row["sha256"]
        ]
    except (AttributeError, LookupError, TypeError) as fault:
        return f"cannot be checked by its manifest: {fault}"
    return f"missing or changed: {', '.join(wrong)}" if wrong else None


def _check_steps(spec: Spec, cluster: Cluster) -> Iterator[Check]:
    """Slurm lists MPI plugins and takes options that do not work, so that each is tried."""
    nodes = cluster.groups[0]
    folders = {"{bundle}": spec.bundle, "{job}": spec.service.job(cluster.job_id).path}
    for options in sorted({tuple(step.srun) for step in spec.steps}):
        tasks = [f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
        argv = cluster.srun("try", nodes, *tasks, *options)
        for placeholder, folder in folders.items():
            argv = [word.replace(placeholder, str(folder)) for word in argv]
        done = cluster.command(*argv, "true", environment=cluster.environment())
        errors = [line for line in done.stderr.splitlines() if "error" in line] or ["it runs"]
        yield "step", done.returncode == 0, f"{' '.join(options)}: {errors[0]}"


def _check_network(wanted: Json, node: str) -> Iterator[Check]:
    """Of this node alone: whether nodes fit each other is checked in the service's job."""
    rows = [row for row in wanted.get("checks") or [] if not row.get("same")]
    environment = environment_of(wanted, os.environ)
    facts = [read(node, environment, Path(wanted.get("root", "/")))] if rows else []
    for _, (name, state, severity, what) in findings(rows, facts):
        passed = None if state == "not read" else state == "ok" or severity == "warning"
        label = "" if state == "ok" else f"{state}: " if state == "not read" else f"{severity}: "
        yield f"network {name}", passed, f"{label}{what}"


def file_digest(path: Path) -> str:
    """SHA-256 as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def checkpoint_errors(folder: Path) -> list[str]:
    """Files of its index that are missing, or shorter or longer than their headers say."""
    config, index = folder / "config.json", folder / "model.safetensors.index.json"
    try:
        if not config.is_file():
            return [f"{folder} has no config.json"]
        names = _indexed(index) if os.path.lexists(index) else []
        files = sorted(folder / name for name in names) or sorted(folder.glob("*.safetensors"))
        if read_json(config) is None:
            raise ValueError(f"{config} is no JSON object")
    except (OSError, ValueError) as fault:
        return [str(fault)]
    return [error for file in files if (error := safetensors_error(file))]


def _indexed(index: Path) -> set[str]:
    """The files that an index names. Raises `OSError` or `ValueError`, which names it."""
    rows = (read_json(index, INDEX_BYTES, MOST_NESTED) or {}).get("weight_map")
    if not isinstance(rows, dict) or not rows:
        raise ValueError(f"{index} has no weight_map")
    for name in rows.values():
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
            raise ValueError(
                f"{index} names {str(name)[:100]!r}, which is not the name of a file in its folder"
            )
    names = set(rows.values())
    if len(names) > MOST_FILES:
        raise ValueError(f"{index} names {len(names)} files, more than any model has")
    return names


def safetensors_error(path: Path) -> str | None:
    """What is wrong with the length of a file, by its own header."""
    try:
        return _length_error(path) if path.is_file() else f"{path} is missing"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{path} has no header of a safetensors file"
    except OSError as fault:
        return f"{path} cannot be read: {fault.strerror}"


def _length_error(path: Path) -> str | None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if length > size:
            return f"{path} is cut off: {size} bytes"
        if length > HEADER_BYTES:
            return f"{path} has a header of {length} bytes, more than any model needs"
        header = parse_json(file.read(length), MOST_NESTED)
    rows = [row for name, row in header.items() if name != "__metadata__"]
    ends = [row["data_offsets"][1] for row in rows]
    if not all(type(end) is int and end >= 0 for end in ends):
        raise ValueError("an offset is no number of bytes")
    whole = 8 + length + max(ends, default=0)
    return None if size == whole else f"{path} has {size} bytes, not {whole}"
