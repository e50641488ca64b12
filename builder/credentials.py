"""Finds credentials in a deployment file, which are refused since bundles are copied and kept.

What is found is never repeated: an error names the place, not the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .diagnostics import Diagnostic

_NAMES = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$", re.I)
# What the services of this field give out, each by the words that its documentation begins it with:
# Hugging Face, NVIDIA, GitHub, GitLab, AWS, Slack; and private keys in PEM.
_VALUES = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bnvapi-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bglpat-[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s:@]+:[^/\s:@]+@"
)
_REMEDY = "give it to the running server: by its environment, or by a file or secret of its machine"


def diagnostics(document: Any) -> Iterator[Diagnostic]:
    """Texts that are credentials, and variables that by their names hold one."""
    for path, value in _texts(document, ""):
        if _VALUES.search(value):
            yield Diagnostic(path, "holds a credential, which would be in every bundle", _REMEDY)
        elif _is_variable(path) and value:
            yield Diagnostic(
                path, "is by its name a credential, which a bundle must not hold", _REMEDY
            )


def _is_variable(path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return parent.rpartition(".")[2] == "environment" and _NAMES.search(name) is not None


def _texts(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _texts(value, f"{path}.{key}".strip("."))
            yield from _texts(str(key), path)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _texts(value, f"{path}.{index}")
