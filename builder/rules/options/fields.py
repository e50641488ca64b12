"""The fields of an option table by their names, and the place of an option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...facts.release import Field

ANY_KEY = "*"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an option stands: its path in the file, and its path in the table."""

    path: str = ""
    schema: str = ""

    def key(self, key: object) -> Place:
        return Place(*(f"{at}.{key}" if at else str(key) for at in (self.path, self.schema)))

    def item(self, key: object) -> Place:
        return Place(f"{self.path}.{key}", f"{self.schema}.{ANY_KEY}")


def by_name(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Fields by every name that a file may give them."""
    return {name: row for key, row in fields.items() for name in (key, *row.get("alias", ()))}
