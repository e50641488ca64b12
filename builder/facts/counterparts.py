"""What one engine calls what another one calls otherwise, from `formats/counterparts.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..documents import DATA
from ..schema import Text
from . import data_file

FORMAT = DATA / "formats" / "counterparts.yaml"


@dataclass(frozen=True, slots=True)
class Row:
    """The options of one decision by engine; `note` says what differs between them."""

    names: dict[str, Text]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Counterparts:
    """What the file holds; `sources` are by engine."""

    sources: dict[str, Text]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """An option of `engine` by its path there, and the `own` path of the same decision here."""

    engine: str
    path: str
    own: str
    note: str = ""


@cache
def table() -> Counterparts:
    return data_file.load(FORMAT, Counterparts)


def of(path: str, engine: str) -> tuple[Counterpart, ...]:
    """What `engine` calls an option that only other engines know by this path.

    A group of options has those of the options in it, and a name alone that of the one option which
    ends in it.

    >>> [row.own for row in of("max_batch_size", "vllm")]
    ['max_num_seqs']
    """
    rows = []
    for row in table().rows:
        own = row.names.get(engine)
        for other, theirs in row.names.items():
            if own and other != engine and theirs != own:
                rows.append(Counterpart(other, theirs, own, row.note))
    exact = [row for row in rows if row.path == path]
    inside = [row for row in rows if row.path.startswith(f"{path}.")]
    return tuple([*exact, *inside] or [row for row in rows if row.path.endswith(f".{path}")])
