"""Detects the form of a file by its name and text: script, Dockerfile, program or YAML."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ..engine import default_formats

IMAGES = "container images"  # a file of another kind that names images of the publisher
_NAME = re.compile(r"(?:Docker|Container)file(?:\..+)?|.+\.(?:docker|container)file", re.IGNORECASE)
_FROM = re.compile(r"^FROM[ \t]+\S+", re.MULTILINE | re.IGNORECASE)


def is_dockerfile(name: str) -> bool:
    return _NAME.fullmatch(Path(name).name) is not None


def has_base(text: str) -> bool:
    """Returns whether a text has a `FROM` line, as every Dockerfile does."""
    return _FROM.search(text) is not None


SCRIPT = "script"
MODEL_CONFIG = "Triton config.pbtxt"
DOCKERFILE = "Dockerfile"
PYTHON = "Python program"
PROSE = "text"
YAML_SUFFIXES = (".yaml", ".yml", ".json")
_SCRIPT_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
# Files that describe options, images and commands without using them.
PROSE_SUFFIXES = (".md", ".markdown", ".rst", ".adoc", ".html", ".ipynb")
_MODEL_CONFIG_LINE = re.compile(
    r"^\s*(input|output|instance_group|parameters|model_transaction_policy)\s*:?\s*[\[{]\s*$", re.M
)


@cache
def _shell_line() -> re.Pattern[str]:
    return re.compile(rf"\A#!.*sh\b|^\s*(exec\s+)?(\S+/)?{default_formats().program}\b", re.M)


def form_of(path: Path, text: str) -> str:
    """Returns the form of a file, such as `SCRIPT`; empty if the file may be YAML."""
    if path.suffix in YAML_SUFFIXES:
        return ""
    if is_dockerfile(path.name) and has_base(text):
        return DOCKERFILE
    if path.suffix.lower() in PROSE_SUFFIXES:
        return PROSE
    if path.suffix == ".py":
        return PYTHON
    if path.suffix in _SCRIPT_SUFFIXES or text.startswith("#!"):
        return SCRIPT
    if ".pbtxt" in path.suffixes or _MODEL_CONFIG_LINE.search(text):
        return MODEL_CONFIG
    return SCRIPT if _shell_line().search(text) or is_job(text) else ""


SUFFIXES = frozenset(
    (".yaml", ".yml", ".json", ".pbtxt", ".sh", ".bash", ".sbatch", ".slurm", ".tpl", ".j2")
)


def is_job(text: str) -> bool:
    return re.search(r"^#SBATCH\s", text, re.M) is not None
