"""Maps every file of `builder/data` to its schema.

Presets are deployments and use the deployment's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic
from ..documents import DATA
from ..errors import BadFacts
from ..facts import data_file


@cache
def schemas() -> Mapping[str, Any]:
    """Returns the schemas by path pattern; the first matching pattern is used. Few runs check a
    data file, so the modules with the schemas are imported here."""
    from ..credentials.shapes import SCHEMA as CREDENTIALS_FILE
    from ..diagnosis import signatures as failures
    from ..estimates.fits import SCHEMAS as measurement_schemas
    from ..facts import chat_turns, hardware, images, plain_data
    from ..facts.advisories import FatalRequests, ProductAdvisories
    from ..facts.architecture import Architecture
    from ..facts.architecture.fields import FIELDS_FILE
    from ..facts.engines import Engine
    from ..facts.model_facts import ModelFacts
    from ..facts.network_checks import NetworkCheck
    from ..facts.published_results import ACCEPTANCE_FILE, PUBLICATION
    from ..facts.release import CHANGED_TABLE
    from ..facts.release.published import PublishedReleases
    from ..facts.release.table import FORMAT_TABLE, RELEASE_TABLE
    from ..facts.release.weight_formats import WeightFormats
    from ..facts.servers import Server
    from ..miniature.sizes import SIZES_FILE
    from ..observability import alerts
    from ..rules import constraints, defects, heuristics

    return {
        "acceptance.yaml": ACCEPTANCE_FILE,
        "advisories/*.yaml": ProductAdvisories,
        "alerts.yaml": alerts.AlertsFile,
        "architectures.yaml": tuple[Architecture, ...],
        "config_fields.yaml": FIELDS_FILE,
        "credentials.yaml": CREDENTIALS_FILE,
        "dashboards.yaml": plain_data.DASHBOARDS,
        "defects/*.yaml": defects.ProductDefects,
        "engines/*.yaml": Engine,
        "fatal_requests.yaml": Mapping[str, FatalRequests],
        **_formats(),
        "formats/*.yaml": FORMAT_TABLE,
        "hardware/*.yaml": hardware.Gpu,
        "images.yaml": images.PublishedImages,
        **measurement_schemas,
        "miniature/*.yaml": SIZES_FILE,
        "metrics/exporters.yaml": plain_data.EXPORTERS_FILE,
        "metrics/*.yaml": plain_data.SERVER_METRICS_FILE,
        "models/*.yaml": ModelFacts,
        "network_checks.yaml": tuple[NetworkCheck, ...],
        "packages.yaml": plain_data.Packages,
        **failures.SCHEMAS,
        **chat_turns.SCHEMAS,
        "heuristics/*.yaml": heuristics.HeuristicsFile,
        "published_releases/*.yaml": PublishedReleases,
        "releases/*.json": RELEASE_TABLE,
        "releases/*.yaml": CHANGED_TABLE,
        "results/*.yaml": PUBLICATION,
        **dict.fromkeys(("rules.yaml", "rules/*.yaml"), constraints.RulesFile),
        **plain_data.FILES,
        "servers/*.yaml": Server,
        "signals.yaml": plain_data.SIGNALS_FILE,
        **plain_data.TRITON_FILES,
        "weight_formats/*.yaml": WeightFormats,
    }


def _formats() -> Mapping[str, Any]:
    """Returns the schemas of the files in `formats` that are not option tables."""
    from ..facts import engines, plain_data
    from ..facts.engines import COUNTERPARTS
    from . import engine

    names = (*engines.names(), engine.TRITON_SERVER)
    return {
        "formats/counterparts.yaml": COUNTERPARTS,
        "formats/*_worker.yaml": engine.WorkerFlags,
        "formats/former_options.yaml": plain_data.FORMER_OPTIONS,
        "formats/value_words.yaml": plain_data.VALUE_WORDS,
        "formats/job_scripts.yaml": plain_data.JOB_SCRIPTS_FILE,
        "formats/surroundings.yaml": plain_data.SURROUNDINGS_FILE,
        **dict.fromkeys(map("formats/{}.yaml".format, names), engine.Formats),
    }


def schema_of(path: Path) -> Any:
    """Returns the schema of a data file in this installation or in a copy of its data folder.
    `None` for any other file and for presets."""
    path = path.absolute()
    folder = next((above for above in path.parents if above == DATA or _is_copy(above)), None)
    if folder is None:
        return None
    name = path.relative_to(folder).as_posix()
    return next((kind for glob, kind in schemas().items() if fnmatchcase(name, glob)), None)


def _is_copy(folder: Path) -> bool:
    """Returns whether a folder looks like `builder/data`."""
    kinds = ("engines", "hardware", "servers")
    return folder.name == "data" and all((folder / kind).is_dir() for kind in kinds)


def data_file_faults(path: Path) -> list[Diagnostic]:
    """Returns every error of a data file, each with file, line, key and fix."""
    if path.suffix == ".csv":
        return _row_faults(path)
    found = data_file.validate(path, schema_of(path))
    name = path.stem if path.parent.name in ("hardware", "engines", "servers") else ""
    if name and not found and (given := data_file.read(path, schema_of(path)).name) != name:
        where = f"{path}:1: name"
        found = [Diagnostic(where, f"{given} is not the name of the file", f"write {name}")]
    return found


def _row_faults(path: Path) -> list[Diagnostic]:
    """Returns every error of a file of measurements."""
    from ..estimates import measurements

    of_pools = schema_of(path) is measurements.DisaggregatedRow
    try:
        (measurements.read_disaggregated if of_pools else measurements.read)(path)
    except BadFacts as error:
        return error.diagnostics
    return []
