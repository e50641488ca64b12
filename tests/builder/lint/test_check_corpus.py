"""Real configurations of other projects: none that its release accepts has an error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import lint as check
from builder import pipeline
from builder.facts import hardware, release
from builder.rules.validation import validate
from tests.conftest import ABSENT, ROOT

CORPUS = ROOT.parent / "shared" / "corpus"
RECIPES = CORPUS.parent / "corpus-inferencex"

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason=ABSENT)

# Sections that no release accepts, and why: mistakes or leftovers of their authors.
REFUSED_BY_ALL = {
    "trtllm-configs/curated/gpt-oss-120b-latency.yaml#cfg": "kv_cache_free_gpu_memory_fraction",
    "trtllm-configs/curated/qwen3.yaml#cfg": "kv_cache_free_gpu_memory_fraction",
}

# Errors in whole files that are true: path and rule.
GENUINE: dict[str, set[tuple[str, str]]] = {
    # An example from before 1.0, with an option that is gone.
    "disaggregated/examples-disagg_config.yaml": {
        ("context_servers.cache_transceiver_config.enable_cache_transceiver", "unknown-key"),
        ("generation_servers.cache_transceiver_config.enable_cache_transceiver", "unknown-key"),
    },
    "trtllm-configs/curated/gpt-oss-120b-latency.yaml": {
        ("kv_cache_free_gpu_memory_fraction", "unknown-key")
    },
    "trtllm-configs/curated/qwen3.yaml": {("kv_cache_free_gpu_memory_fraction", "unknown-key")},
}

# What the folders of the corpus hold; files of these kinds are recognised as nothing.
FOREIGN = ("vllm", "dynamo/aiconfigurator", "trtllm-configs/database/lookup", "lookup", "legacy")

# Indexes and tables of the collections themselves, and a manifest that downloads a model.
WITHOUT_OPTIONS = (*FOREIGN, "index.json", "engine-configs.json")

ROLES = {"agg": "aggregated", "prefill": "prefill", "decode": "decode"}


def run(paths: Sequence[Path], *releases: str) -> check.Report:
    return check.check(paths, check.CheckOptions(releases), pipeline.deployment_diagnostics)


def accepting(config: dict[str, Any]) -> str | None:
    """The newest release that takes all options, stable ones first."""
    stable = release.newest_stable()
    for name in (stable, *reversed(release.known())):
        if not any(row.severity == "error" for row in validate(release.load(name), config)):
            return name
    return None


def test_every_section_that_its_release_accepts_passes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each is written as a recipe of its role, GPU and workload, so that all rules can judge it."""
    rows = json.loads((CORPUS / "engine-configs.json").read_text())
    total, passed = Counter[str](), Counter[str]()
    refused, sections = set(), {}
    for index, row in enumerate(rows):
        source = f"{row['source']} {row['kind']}"
        total[source] += 1
        newest = accepting(row["config"])
        if newest is None:
            refused.add(row["id"])
            continue
        gpu = (row["gpu"] or "").lower()
        recipe = {
            "resources": {"gpu_type": gpu if gpu in hardware.known() else None},
            "backend": {"trtllm_config": {ROLES[row["role"]]: row["config"]}},
            "benchmark": {"isl": row["isl"], "osl": row["osl"]},
        }
        folder = tmp_path / newest
        folder.mkdir(exist_ok=True)
        path = folder / f"{index}.yaml"
        path.write_text(yaml.safe_dump(recipe, sort_keys=False))
        sections[str(path)] = source
    reports = [run([folder], folder.name) for folder in sorted(tmp_path.iterdir())]
    wrong = [str(row) for report in reports for row in report.findings if row.severity == "error"]
    faulty = {row.where for report in reports for row in report.findings if row.severity == "error"}
    for name, source in sections.items():
        passed[source] += name not in faulty
    for source in total:
        record_property(source, f"{passed[source]} of {total[source]}")
        print(f"{source:<44} {passed[source]:>4} of {total[source]:>4} pass")
    rules = Counter(row.rule for report in reports for row in report.findings)
    print("warnings:", ", ".join(f"{rule} {count}" for rule, count in rules.most_common()))
    assert refused == set(REFUSED_BY_ALL)
    assert wrong == []
    assert sum(passed.values()) == len(rows) - len(refused)


@pytest.fixture(scope="module")
def whole() -> check.Report:
    """Every file of the collections, each by the release that it names."""
    return run([CORPUS, RECIPES])


def test_whole_files_have_no_error_that_is_not_true(whole: check.Report) -> None:
    errors: dict[str, set[tuple[str, str]]] = {}
    for row in whole.findings:
        if row.severity == "error":
            name = Path(row.where).relative_to(CORPUS).as_posix()
            errors.setdefault(name, set()).add((row.path, row.rule))
    assert errors == GENUINE


def test_every_file_that_holds_options_is_judged(whole: check.Report) -> None:
    files, sections = Counter[str](), Counter[str]()
    for row in whole.files:
        files[row.kind] += bool(row.judged)
        sections[row.kind] += row.judged.sections
    print(*(f"{kind}: {count} files" for kind, count in files.most_common()), sep="\n")
    recipes = [
        path for folder in (CORPUS / "srt-slurm", RECIPES) for path in folder.rglob("*.yaml")
    ]
    assert files["SLURM recipe"] == len(recipes)
    assert sum(sections.values()) >= 2 * len(recipes) * 0.9
    skipped = [row.file for row in whole.skipped]
    assert [name for name in skipped if not any(part in name for part in WITHOUT_OPTIONS)] == []


def test_recipes_are_judged_by_the_release_that_each_names(whole: check.Report) -> None:
    rows = json.loads((RECIPES / "index.json").read_text())["files"]
    wanted = {str(RECIPES / row["file"]): (row["trtllm_version"],) for row in rows}
    assert {row.file: row.releases for row in whole.files if row.file in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (name, path)
        for name, rows in GENUINE.items()
        for path, rule in sorted(rows)
        if rule == "unknown-key"
    ],
)
def test_a_mistake_of_an_author_is_one_by_the_option_table_of_every_release(
    name: str, path: str
) -> None:
    """The proof: the class of options that the key stands in has no such field in any of them. The
    tables name the source that they were read from (`provenance`)."""
    *above, key = [part for part in path.split(".") if not part.endswith("_servers")]
    for known in release.known():
        table = release.load(known)
        assert table.table["provenance"]
        fields = table.top_level
        for part in above:
            fields = table.table["types"][fields[part]["of"]]["fields"]
        spellings = {alias for field in fields.values() for alias in field.get("alias", ())}
        assert key not in {*fields, *spellings}, (known, name)
