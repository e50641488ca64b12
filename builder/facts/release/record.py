"""One release of an engine: answers what the rest of the toolkit asks about its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ...documents import DATA
from .. import engines
from ..engines import Engine
from . import published
from .version import without_post

ServerRole = Literal["agg", "prefill", "decode"]

# An option as a row of the table: `type` and, by type, `values`, `items`, `of`, bounds, `default`.
# `uncertain` says what a low `confidence` is about: the option's `existence`, which `kind`s of a
# union have it, or its `value`s.
Field = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the server command: its spellings, its type and the values it allows.

    `positional` marks the model argument. `type` is one of str, int, float, flag, enum, path, json,
    path_or_str.
    """

    name: str
    spellings: tuple[str, ...]
    type: str
    values: tuple[str, ...] = ()
    default: Any = None
    positional: bool = False
    multiple: bool = False
    yaml_path: str | None = None


@dataclass(frozen=True, eq=False)
class Release:
    """One release of an engine. `path` is the file of its table; one table is one release.

    A release without a table has `neighbours`: a file is checked against each of them, and its own
    table is what they have in common; such a neighbour `stands_for` it. `based_on` is the one that
    a file of changes starts from.
    """

    table: Mapping[str, Any] = field(repr=False)
    path: Path
    engine: Engine = field(default_factory=engines.default, repr=False)
    neighbours: tuple[Release, ...] = ()
    based_on: Release | None = field(default=None, repr=False)
    stands_for: str = ""

    @property
    def name(self) -> str:
        return str(self.table["release"])

    @property
    def judged_name(self) -> str:
        """The name of the release that this table is used for: `stands_for` if set, else its
        own."""
        return self.stands_for or self.name

    @property
    def judges(self) -> tuple[Release, ...]:
        """The tables to check a file for this release against: its own, or its neighbours'."""
        return self.neighbours or (self,)

    @property
    def position(self) -> str:
        """The number that orders releases; a development table has that of its nearest release."""
        return str(self.table.get("nearest", self.name))

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the table is made of."""
        if self.neighbours:
            return tuple(dict.fromkeys(chain.from_iterable(row.files for row in self.neighbours)))
        return (self.path, *(self.based_on.files if self.based_on else ()))

    @property
    def statement(self) -> str:
        """How a release without a table is checked; empty for other releases."""
        names = [row.name for row in self.neighbours]
        if not names:
            return ""
        lacks = "has no option table"
        if published.unknown(self.name, self.engine):
            lacks = "is not a known release and has no option table"
        if len(names) == 2:
            return (
                f"{self.name} {lacks}: it is checked against its neighbours "
                f"{' and '.join(names)}; an error is what both refuse"
            )
        (one,) = self.neighbours
        if one.position == self.name:
            why = "a development table, the nearest to it"
        elif without_post(self.name) == one.name:
            why = f"of which it is a {'build' if '+' in self.name else 'patch'}"
        else:
            why = "the newest table; what came later is not known"
        return f"{self.name} {lacks}: it is checked against {one.name}, {why}"

    @property
    def may_lack_options(self) -> bool:
        """Whether the release may have options that the table lacks; the program then refuses
        none."""
        root = self.table["types"][self.table["root"]]
        return "*" in root.get("open_keys", ())

    @property
    def ships(self) -> bool:
        """Whether the table is the toolkit's own, not one that a user imported."""
        return self.path.is_relative_to(DATA)

    @property
    def confidence(self) -> str:
        """How sure the table is, in words."""
        return str(self.table["provenance"]["confidence"])

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.table["provenance"]["sources"])

    @property
    def carried_from(self) -> Mapping[str, str]:
        """Parts that an import took over from another release: part -> that release."""
        return dict(self.table.get("carried_from", {}))

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """The cross-field rules that hold for this release."""
        return tuple(self.table["rules"])

    @property
    def containers(self) -> Mapping[str, tuple[str, ...]]:
        """Tags of the containers that carry this release, by server."""
        return {name: tuple(tags) for name, tags in self.table["containers"].items()}

    @cached_property
    def serve_flags(self) -> tuple[Flag, ...]:
        """The flags of the engine's own server."""
        return tuple(map(_flag, self.table["serve"]["flags"]))

    @cached_property
    def subcommands(self) -> Mapping[str, tuple[Flag, ...]]:
        """The other subcommands of the engine's server and their flags."""
        rows = self.table["subcommands"]
        return {name: tuple(map(_flag, flags)) for name, flags in rows.items()}

    @property
    def config_flag(self) -> str:
        """The spelling of the option-file flag that every release understands."""
        (flag,) = (row for row in self.serve_flags if row.name == self.engine.option_file_flag)
        return flag.spellings[-1]

    def flags_for(self, architecture: str) -> list[Mapping[str, str]]:
        """Server flags that a model needs: `flag`, `value`, `reason`, `evidence` and `source`."""
        rows = self.table["serve"]["flags_by_architecture"]
        return [row for row in rows if row["architecture"] == architecture]

    def spelling(self, name: str) -> str:
        """The spelling of a server flag, newest first."""
        (flag,) = (row for row in self.serve_flags if row.name == name)
        return flag.spellings[0]

    @property
    def precedence(self) -> Literal["yaml", "cli_when_typed"]:
        """Whether the file or a typed flag wins if both set an option."""
        return self.table["serve"]["precedence"]["winner"]  # type: ignore[no-any-return]

    @property
    def deep_merged_keys(self) -> tuple[str, ...]:
        """Top-level options whose values from file and flags are merged key by key, not as a
        whole."""
        return tuple(self.table["serve"]["precedence"].get("deep_merged_keys", ()))

    @property
    def injected(self) -> Mapping[str, Any]:
        """Option paths that the server command sets by itself, with their values."""
        return dict((self.table["serve"]["injected"] or {}).get("values", {}))

    @property
    def endpoints(self) -> tuple[tuple[str, str], ...]:
        """Method and path of every endpoint of the server; the method may be `ANY`."""
        return tuple((method, path) for method, path in self.table["endpoints"]["server"])

    @property
    def requests_lack(self) -> tuple[str, ...]:
        """Fields and values of chat requests that the server refuses and others take."""
        return tuple(self.table.get("requests_lack", ()))

    @property
    def metric_prefix(self) -> str:
        return str(self.table["metrics"].get("prefix", ""))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The Prometheus metrics without the prefix; none if they are unknown."""
        return tuple(self.table["metrics"].get("names", ()))

    @property
    def metrics_confidence(self) -> str:
        return str(self.table["metrics"].get("confidence", "unknown"))

    @property
    def aliases(self) -> Mapping[str, str]:
        """Choices whose name changed over time -> their option path in this release."""
        return self.table["aliases"]  # type: ignore[no-any-return]

    def option_path(self, alias: str) -> str:
        """The option path by which this release knows a choice whose name changed over time."""
        return self.aliases.get(alias, alias)

    @property
    def moe_engine_default(self) -> str:
        """The MoE backend if the option file sets none."""
        return str(self.table["moe"]["engine_default"])

    @property
    def moe_load_balancer_backends(self) -> tuple[str, ...]:
        """MoE backends that work with an expert load balancer."""
        return tuple(self.table["moe"]["load_balancer_backends"])

    @property
    def cuda_graphs_engine_default(self) -> int:
        """How many CUDA graphs are captured if the option file does not set it."""
        return int(self.table["cuda_graphs_engine_default"])

    @property
    def mtp_kv_layers(self) -> Literal["per_draft_token", "one"]:
        """The number of KV cache layers that multi-token prediction uses."""
        return self.table["mtp_kv_layers"]["value"]  # type: ignore[no-any-return]

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that this release is known to read, each with its source."""
        return self.table["environment"]  # type: ignore[no-any-return]

    @property
    def top_level(self) -> Mapping[str, Field]:
        """The options at the top of an option file."""
        return self.table["types"][self.table["root"]]["fields"]  # type: ignore[no-any-return]

    @property
    def server_options(self) -> Mapping[str, Field]:
        """Options of the server that an option file may have next to the engine's."""
        root = self.table.get("server_root")
        return self.table["types"][root]["fields"] if root else {}

    @property
    def flat_option_file(self) -> bool:
        """Whether the server reads groups of options as JSON text only."""
        return bool(self.table.get("flat_option_file"))

    @cached_property
    def paths(self) -> Mapping[str, tuple[Field, ...]]:
        """Every option by its dotted path; several fields where the kinds of a union differ.

        Aliases have paths of their own. Items of lists and mappings stand under `*`, a union's
        discriminator under its own name.
        """
        found: dict[str, list[Field]] = {}
        for path, row in self._walk(self.table["root"], "", ()):
            found.setdefault(path, []).append(row)
        return {path: tuple(rows) for path, rows in found.items()}

    def has(self, path: str) -> bool:
        """Whether an option exists, or a mapping with free keys that may contain it."""
        above = self.paths.get(path.rpartition(".")[0], ())
        return path in self.paths or any(row["type"] in ("mapping", "any") for row in above)

    def _walk(self, kind: str, prefix: str, above: tuple[str, ...]) -> Iterator[tuple[str, Field]]:
        if kind in above:
            return
        for name, row in self.table["types"][kind]["fields"].items():
            for spelling in (name, *row.get("alias", ())):
                yield prefix + spelling, row
            yield from self._walk_into(row, prefix + name, (*above, kind))

    def _walk_into(
        self, row: Field, path: str, above: tuple[str, ...]
    ) -> Iterator[tuple[str, Field]]:
        if row["type"] == "record":
            yield from self._walk(row["of"], f"{path}.", above)
        elif row["type"] == "union":
            union = self.table["unions"][row["of"]]
            yield f"{path}.{union['discriminator']}", discriminator(union)
            for kind in union["types"].values():
                yield from self._walk(kind, f"{path}.", above)
        for option in alternatives(row):
            yield from self._walk_into(option, path, above)
        if "items" in row:
            yield f"{path}.*", row["items"]
            yield from self._walk_into(row["items"], f"{path}.*", above)

    def default(self, path: str) -> Any:
        """What the engine uses where an option is not given.

        `None` if it decides by itself, if the kinds of a union differ, or for an unknown path.
        """
        values = [
            row.get("effective_default", row.get("default")) for row in self.paths.get(path, ())
        ]
        return values[0] if values and all(value == values[0] for value in values) else None


def discriminator(union: Mapping[str, Any]) -> Field:
    """The option of a union that says which of its kinds is meant."""
    return {
        "type": "enum",
        "values": list(union["types"]),
        "default": union.get("default"),
        "case_insensitive": union.get("case_insensitive", False),
    }


def by_name(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Fields by every name that a file may give them."""
    found: dict[str, Field] = {}
    for key, row in fields.items():
        found |= dict.fromkeys((key, *row.get("alias", ())), row)
    return found


def alternatives(field: Field) -> Sequence[Field]:
    """What an option of type `either` may be; nothing for other types."""
    return field["of"] if field["type"] == "either" else ()


def record_types(field: Field, unions: Mapping[str, Any], in_items: bool = False) -> Iterator[str]:
    """The record types that an option may have; with `in_items`, also those of its items."""
    if field["type"] == "record":
        yield field["of"]
    elif field["type"] == "union":
        yield from unions[field["of"]]["types"].values()
    for inner in alternatives(field):
        yield from record_types(inner, unions, in_items)
    if in_items and "items" in field:
        yield from record_types(field["items"], unions, in_items)


def _flag(row: Mapping[str, Any]) -> Flag:
    return Flag(
        name=row["name"],
        spellings=tuple(row["flags"]),
        type=row["type"],
        values=tuple(row.get("values", ())),
        default=row.get("default"),
        positional=row.get("positional", False),
        multiple=row.get("multiple", False),
        yaml_path=row.get("yaml_path"),
    )
