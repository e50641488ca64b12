"""The schema of a release table: options by type, server flags, MoE backends and what else differs.

`faults` adds to the schema what no single key shows: names that stand for nothing, and what
planning needs and does not find.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ..schema import Check, Consistency, Text

Fault = tuple[str, str]
"""A dotted path in the table, and what is wrong there."""

MAX_DEPTH = 20  # of options within options

Scalar = bool | int | float | str | None
ReleaseName = Annotated[str, Check(lambda text: not set(text) & set(" \t\n"), "must be one word")]
Evidence = Literal["documented", "assumed"]


class OptionRow(TypedDict, total=False):
    """One option. `values`, `items` and `of` are needed by type, see `faults`."""

    type: str
    values: tuple[bool | int | float | str, ...]
    items: dict[str, Any]
    of: Any
    keys: Literal["int", "str"]
    nullable: bool
    required: bool
    open: bool
    internal: bool
    case_insensitive: bool
    ge: float
    gt: float
    le: float
    lt: float
    min_length: int
    default: Any
    default_factory: str
    effective_default: Scalar
    alias: tuple[str, ...]
    status: Literal["prototype", "beta", "deprecated", "removed"]
    confidence: str
    uncertain: Literal["existence", "value"]
    effect: str
    replaced_by: str
    description: str


class RecordType(TypedDict):
    """A group of options."""

    fields: dict[str, OptionRow]
    open_keys: NotRequired[tuple[str, ...]]
    only_in_python: NotRequired[bool]
    backend: NotRequired[str]


class UnionType(TypedDict):
    """Groups of which one is meant, by the value of an option."""

    discriminator: str
    types: dict[str, str]
    default: NotRequired[str]
    case_insensitive: NotRequired[bool]


class FlagRow(TypedDict):
    """A flag of a command."""

    name: Text
    flags: tuple[Text, ...]
    type: Text
    values: NotRequired[tuple[str, ...]]
    default: NotRequired[Scalar]
    default_known: NotRequired[bool]
    positional: NotRequired[bool]
    multiple: NotRequired[bool]
    yaml_path: NotRequired[str]
    status: NotRequired[str]
    note: NotRequired[str]


class PrecedenceRow(TypedDict):
    """Who wins where flag and file name the same option."""

    winner: Literal["yaml", "cli_when_typed"]
    confidence: str
    merge: NotRequired[str]
    deep_merged_keys: NotRequired[tuple[str, ...]]
    cli_to_nested: NotRequired[dict[str, str]]


class InjectedOptions(TypedDict, total=False):
    """What the server command sets by itself."""

    values: dict[str, Any]
    versions: str
    note: str
    gpus_per_node: str
    env: tuple[str, ...]


class ArchitectureFlag(TypedDict):
    """A server flag that the models of one architecture need."""

    architecture: str
    flag: str
    value: str
    reason: str
    evidence: Evidence
    source: str


class ServeCommand(TypedDict):
    """The server command."""

    flags: tuple[FlagRow, ...]
    precedence: PrecedenceRow
    injected: InjectedOptions | None
    flags_by_architecture: tuple[ArchitectureFlag, ...]
    source: NotRequired[str]
    absent: NotRequired[tuple[str, ...]]
    default_confidence: NotRequired[str]
    grpc: NotRequired[dict[str, Any]]


class Endpoints(TypedDict):
    """Methods and paths of the server."""

    server: tuple[tuple[str, ...], ...]
    conditions: NotRequired[dict[str, str]]
    disaggregated_server: NotRequired[tuple[str, ...]]
    confidence: NotRequired[str]


class MetricNames(TypedDict, total=False):
    """The Prometheus metrics, as far as anybody has read them."""

    prefix: str
    prefix_confidence: str
    names: tuple[str, ...]
    labels: dict[str, tuple[str, ...]]
    confidence: str
    available: str


class MoeRow(TypedDict):
    """A MoE backend that has kernels for a quantization on compute capabilities."""

    backend: str
    quant_algo: str | None
    sm: tuple[int, ...]
    evidence: Evidence
    source: str


class MoeTable(TypedDict):
    rows: tuple[MoeRow, ...]
    only_on: NotRequired[dict[str, dict[Literal["sm", "source"], Any]]]
    engine_default: str
    load_balancer_backends: tuple[str, ...]
    bias_backends: NotRequired[tuple[str, ...]]
    no_router_weight_on_input: NotRequired[tuple[str, ...]]
    selection_source: NotRequired[str]
    selection_confidence: NotRequired[str]
    on_mismatch: NotRequired[str]
    auto: NotRequired[tuple[dict[str, Any], ...]]
    auto_otherwise: NotRequired[str]


class Provenance(TypedDict):
    """Where a table comes from, and how sure it is."""

    sources: tuple[str, ...]
    confidence: str
    tag_commit: NotRequired[str]
    tag_commit_short: NotRequired[str]
    commit: NotRequired[str]
    version_guess: NotRequired[str]


class OptionTable(TypedDict):
    """What is known of a file format: options by type."""

    root: str
    types: dict[str, RecordType]
    unions: dict[str, UnionType]
    aliases: dict[str, str]


class FormatRow(OptionTable):
    """A file format that is none of a release's."""

    release: Text
    source: Text
    serve: dict[Literal["flags"], tuple[FlagRow, ...]]


class ReleaseRow(OptionTable):
    """A release of an engine. `aliases` are choices whose name changed -> their option path."""

    format: int
    release: ReleaseName
    provenance: Provenance
    carried_from: NotRequired[dict[str, str]]
    serve: ServeCommand
    subcommands: dict[str, tuple[FlagRow, ...]]
    llmapi_launch: NotRequired[dict[str, Any]]
    endpoints: Endpoints
    metrics: MetricNames
    moe: MoeTable
    cuda_graphs_engine_default: int
    mtp_kv_layers: dict[Literal["value", "source"], str]
    environment: dict[str, str]
    supported_architectures: NotRequired[dict[str, str]]
    unsupported_architectures: dict[str, str | None]
    support_matrix: NotRequired[dict[str, Any]]
    rules: tuple[str, ...]
    containers: dict[str, tuple[str, ...]]


# What the options of each type cannot do without, and of which Python type it is.
_REQUIRED: Mapping[str, tuple[str, Any]] = {
    "enum": ("values", list),
    "list": ("items", dict),
    "mapping": ("items", dict),
    "either": ("of", list),
    "record": ("of", str),
    "union": ("of", str),
}
_PLAIN = ("int", "float", "bool", "str", "any", "object")
_NUMBER = (int, float)

# What planning asks for: the kinds of speculation, and defaults that it computes with.
_SPECULATION = "speculative_config.decoding_type"
_NUMERIC_DEFAULTS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "max_batch_size", "max_num_tokens"),
    "kv_cache_config.free_gpu_memory_fraction",
)


def faults(table: Mapping[str, Any]) -> Iterator[Fault]:
    """Names that stand for nothing, and options without what their type needs."""
    wrong = list(_types(table))
    yield from wrong or (_names(table) if "precedence" in table["serve"] else ())


def lacking(paths: Collection[str], default: Callable[[str], Any]) -> Iterator[Fault]:
    """What planning needs of the options by path and of their defaults, and does not find."""
    if _SPECULATION not in paths:
        yield _SPECULATION, "is not an option, and planning asks for it"
    for path in _NUMERIC_DEFAULTS:
        value = default(path)
        if not isinstance(value, _NUMBER) or isinstance(value, bool):
            yield path, "has no default that is a number, and planning computes with it"


def _types(table: Mapping[str, Any]) -> Iterator[Fault]:
    if table["root"] not in table["types"]:
        yield "root", f"{table['root']} is not among the types"
    for kind, record in table["types"].items():
        for name, row in record["fields"].items():
            yield from _option(row, table, f"types.{kind}.fields.{name}", 0)
    for name, union in table["unions"].items():
        if not union["types"]:
            yield f"unions.{name}.types", "is empty"
        for value, kind in union["types"].items():
            if kind not in table["types"]:
                yield f"unions.{name}.types.{value}", f"{kind} is not among the types"
        if union.get("default") is not None and union["default"] not in union["types"]:
            yield f"unions.{name}.default", "is not among its types"


def _option(row: Any, table: Mapping[str, Any], path: str, depth: int) -> Iterator[Fault]:
    kind = row.get("type") if isinstance(row, dict) else None
    if depth > MAX_DEPTH:
        yield path, "is nested too deeply"
        return
    if not isinstance(kind, str) or kind not in (*_PLAIN, *_REQUIRED):
        yield f"{path}.type", "is not a type of an option"
        return
    for name in ("default", "effective_default"):
        if kind in ("int", "float", "bool") and isinstance(row.get(name), str | list | dict):
            yield f"{path}.{name}", "is not a value of the option's type"
    if kind not in _REQUIRED:
        return
    key, needed = _REQUIRED[kind]
    if not isinstance(row.get(key), needed):
        yield f"{path}.{key}", "is missing, or of another type than the option needs"
        return
    homes = {"record": "types", "union": "unions"}
    if kind in homes and row["of"] not in table[homes[kind]]:
        yield f"{path}.of", f"{row['of']} is not among the {homes[kind]}"
    if kind in ("enum", "either") and not row[key]:
        yield f"{path}.{key}", "is empty"
    for inner in row["of"] if kind == "either" else [row["items"]] if key == "items" else []:
        yield from _option(inner, table, f"{path}.{key}", depth + 1)


def _names(table: Mapping[str, Any]) -> Iterator[Fault]:
    """Names that other parts of the table, or the toolkit, ask for."""
    names = [flag["name"] for flag in table["serve"]["flags"]]
    for index, flag in enumerate(table["serve"]["flags"]):
        if not flag["flags"] or names.count(flag["name"]) > 1:
            yield f"serve.flags.{index}", "has no spelling, or the name of another flag"
    if "extra_llm_api_options" not in names:
        yield "serve.flags", "has no extra_llm_api_options, the flag of the option file"
    for index, row in enumerate(table["serve"]["flags_by_architecture"]):
        if row["flag"] not in names:
            yield f"serve.flags_by_architecture.{index}.flag", f"{row['flag']} is not a flag"
    for index, pair in enumerate(table["endpoints"]["server"]):
        if len(pair) != 2:
            yield f"endpoints.server.{index}", "is not a method and a path"
    if table["mtp_kv_layers"]["value"] not in ("per_draft_token", "one"):
        yield "mtp_kv_layers.value", "must be per_draft_token or one"


ReleaseTable = Annotated[ReleaseRow, Consistency(faults)]
FormatTable = Annotated[FormatRow, Consistency(faults)]
