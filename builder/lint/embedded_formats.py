"""Names by which options of the engine are recognised in files of other formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..documents import DATA
from ..facts import data_file
from ..facts.schema import Text

FORMAT = DATA / "formats" / "embedded.yaml"


@dataclass(frozen=True, slots=True)
class EmbeddedFormats:
    """Names by which other formats are recognised: keys that are `holders` of options, `signature`
    options that no other engine has, those of `others`, and `flags` that take options as JSON.

    `nim` are variables of NIM with the option that each sets, `nim_others` those that set none.
    """

    source: Text
    holders: tuple[Text, ...]
    signature: tuple[Text, ...]
    others: tuple[Text, ...]
    flags: tuple[Text, ...]
    nim: Mapping[Text, Text]
    nim_others: tuple[Text, ...]


@cache
def names(kind: str) -> frozenset[str]:
    return frozenset(getattr(_document(), kind))


@cache
def nim_options() -> Mapping[str, str]:
    """The option that each variable of NIM sets."""
    return dict(_document().nim)


@cache
def _document() -> EmbeddedFormats:
    document: EmbeddedFormats = data_file.load(FORMAT, EmbeddedFormats)
    return document
