"""Reads launcher files: the options of their servers and the workload that they define."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...documents import Variable, Yaml, value_at
from ...facts import engines
from ...facts.release import Release
from ...rules.validation import validate
from ..engine import default_formats, fields_of, format_table
from ..model import Content, Kind, OptionsBlock, StatedWorkload, below, int_at, role_of, split
from ..rules.model import named_gpu

AUTODEPLOY_NAME = "_autodeploy"


def is_mapping(data: Mapping[str, Any], path: str) -> bool:
    return isinstance(value_at(data, path), Mapping)


def _launcher(name: str, options: str, isl: str, osl: str, inside: str = "") -> Kind:
    """Returns the record of a launcher file that holds options by role at `options`. If `inside` is
    set, the options of a role are below that key, next to keys of the launcher."""

    def parse(document: Yaml) -> Content:
        data = document.data
        load = StatedWorkload(int_at(data, isl), int_at(data, osl), gpu=_gpu(document))
        sections = []
        for role_name, row in value_at(data, options).items():
            given, role = value_at(row, inside) if inside else row, role_of(str(role_name))
            if isinstance(given, Mapping) and role:
                where = below(below(options, str(role_name)), inside)
                given = _swept(given, data.get("sweep"))
                sections.append(OptionsBlock(given, document, where, role=role, workload=load))
        return Content(name, sections)

    return name, lambda data, release: is_mapping(data, options), parse


def _swept(value: Any, swept: Any) -> Any:
    """Replaces each `{name}` of a parameter sweep by a variable."""
    if isinstance(value, Mapping):
        return {key: _swept(item, swept) for key, item in value.items()}
    if isinstance(value, list):
        return [_swept(item, swept) for item in value]
    is_one = isinstance(value, str) and isinstance(swept, Mapping) and value[1:-1] in swept
    return Variable(value) if is_one and value == f"{{{value[1:-1]}}}" else value


def _gpu(document: Yaml) -> str | None:
    """Returns the GPU type that the servers of a file run on, if there is only one."""
    named = named_gpu(document)
    return named.name.lower() if named else None


def _recipe() -> Kind:
    """Returns the record of a schema 2 recipe, whose workers may use several engines."""
    name, _, parse = _launcher(
        *("SLURM recipe, schema 2", "roles", "benchmark.isl", "benchmark.osl"),
        inside="args",
    )

    def fits(data: Mapping[str, Any], release: Release) -> bool:
        return any(engine == default_formats().recipe_name for _, engine in recipe_roles(data))

    def of_engine(document: Yaml) -> Content:
        others = {
            role: x for role, x in recipe_roles(document.data) if x != default_formats().recipe_name
        }
        content = parse(document)
        content.unread += (
            f"roles.{role}: {str(engine)[:40]} is not known here"
            for role, engine in others.items()
            if engine not in engines.names()
        )
        content.sections = [row for row in content.sections if row.path.split(".")[1] not in others]
        return content

    return name, fits, of_engine


def recipe_roles(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the roles of a schema 2 recipe, each with the name of its engine. The engine is set
    for the role or once for the whole recipe."""
    roles = data.get("roles")
    for role, row in roles.items() if isinstance(roles, Mapping) else ():
        own = row.get("engine") if isinstance(row, Mapping) else None
        named = own or data.get("engine") or data.get("backend")
        yield str(role), named.get("type") if isinstance(named, Mapping) else named


# Keys of a performance suite entry that are not server options: the keys that
# tests/integration/defs/perf/test_perf_sanity.py of NVIDIA/TensorRT-LLM filters out, and `env` of
# older versions.
_SUITE_KEYS = (
    *("mode", "concurrency", "name", "model_name", "disagg_run_type", "gpus", "gpus_per_node"),
    *("match_mode", "client_configs", "backend", "server_env_var", "env"),
)
_SUITE_FILE = "extra_llm_api_config_path"  # a file with more options


def _suite(document: Yaml) -> Content:
    content, load = Content("performance suite"), StatedWorkload(gpu=_gpu(document))
    for index, row in enumerate(document.data["server_configs"]):
        if not isinstance(row, Mapping):
            continue
        path, is_open = f"server_configs.{index}", _SUITE_FILE in row
        if is_open:
            content.unread.append(f"{path}: {row[_SUITE_FILE]} has more options")
        options = split(row, (*_SUITE_KEYS, _SUITE_FILE))[1]
        if row.get("backend") == AUTODEPLOY_NAME:
            table = format_table("autodeploy")
            own, options = split(options, fields_of(table, "AutoDeploy"))
            given = OptionsBlock(own, document, path)
            content.diagnostics += map(given.locate, validate(table, own))
        content.sections.append(
            OptionsBlock(options, document, path, workload=load, is_open=is_open)
        )
    return content


def _is_suite(data: Mapping[str, Any], release: Release) -> bool:
    rows = data.get("server_configs")
    return isinstance(rows, list) and any(isinstance(row, Mapping) for row in rows)


LAUNCHERS: tuple[Kind, ...] = (
    _launcher("SLURM recipe", "backend.trtllm_config", "benchmark.isl", "benchmark.osl"),
    _recipe(),
    _launcher(
        *("disaggregated benchmark", "worker_config"),
        *("benchmark.input_length", "benchmark.output_length"),
    ),
    ("performance suite", _is_suite, _suite),
)
