"""Finds what an engine calls an option of another engine, from `formats/counterparts.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..documents import DATA
from ..schema import Text
from . import data_file

FORMAT = DATA / "formats" / "counterparts.yaml"


# The options of one decision by engine; `note` says what differs between them.
COUNTERPARTS: Any = {
    "sources": {"*": Text},
    "rows": [{"names": {"*": Text}, "note?": str}],
}


@dataclass(frozen=True, slots=True)
class Counterpart:
    """An option of `engine` by its path there, and the `own` path of the same decision here."""

    engine: str
    path: str
    own: str
    note: str = ""


def of(path: str, engine: str) -> tuple[Counterpart, ...]:
    """What `engine` calls an option that only other engines know by this path.

    A group of options has those of the options in it, and a name alone that of the one option which
    ends in it.

    >>> [row.own for row in of("max_batch_size", "vllm")]
    ['max_num_seqs']
    """
    rows = []
    for row in data_file.load(FORMAT, COUNTERPARTS)["rows"]:
        own = row["names"].get(engine)
        for other, theirs in row["names"].items():
            if own and other != engine and theirs != own:
                rows.append(Counterpart(other, theirs, own, row.get("note", "")))
    exact = [row for row in rows if row.path == path]
    inside = [row for row in rows if row.path.startswith(f"{path}.")]
    return tuple([*exact, *inside] or [row for row in rows if row.path.endswith(f".{path}")])
