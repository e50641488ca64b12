"""Requests that end a server's process instead of being refused, by the product of its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..documents import DATA
from ..schema import Positive, Text
from .data_file import load

FILE = DATA / "fatal_requests.yaml"


@dataclass(frozen=True, slots=True)
class FatalRequest:
    """One kind of request; `fixed_in` is the first version of the product that refuses it."""

    request: Text
    detail: Text
    signal: Literal["SEGV", "FPE"]
    fixed_in: Text
    cve: Text
    remedy: Text
    source: Text


@dataclass(frozen=True, slots=True)
class FatalRequests:
    """Those of a product, seen in one version, and the bounds that a proxy keeps."""

    seen_in: Text
    most_nesting: Positive
    safe_body_bytes: Positive
    requests: tuple[FatalRequest, ...]

    def causes(self) -> dict[str, str]:
        """For each signal that ends the server, which requests are known to do that."""
        found: dict[str, str] = {}
        for row in self.requests:
            cause = f"{row.request} ({row.cve}, fixed in {row.fixed_in}): {row.remedy}"
            found[row.signal] = f"{found[row.signal]}; {cause}" if row.signal in found else cause
        return found


def of(product: str) -> FatalRequests | None:
    """Those of a product, `None` where none are known."""
    products: Mapping[str, FatalRequests] = load(FILE, Mapping[str, FatalRequests])
    return products.get(product)
