"""Whatever `plan` accepts, `check` accepts too: over generated deployments and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from builder import check, checkpoint, hardware, pipeline, release, targets
from builder.errors import BadFacts, BadInput

EXAMPLES = 600

NAMES = [
    name for name in checkpoint.known_names() if not checkpoint.gather(name).architecture.draft_head
]


def option_values(field: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values of an option's type, some of them beyond its bounds."""
    match field["type"]:
        case "bool":
            return st.booleans()
        case "int":
            return st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 8, 16, 64, 64, 512, 8192, 20000, 20000])
        case "float":
            return st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.9, 2.0])
        case "enum":
            return st.sampled_from(field["values"])
        case "list":
            return st.lists(option_values(field["items"]), max_size=4)
        case _:
            return st.sampled_from(["auto", "fp8", "nvfp4", "x"])


@cache
def overridable(name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The scalar options of a release, by path."""
    table = release.load(name)
    kinds = ("bool", "int", "float", "enum", "str", "list")
    return [
        (path, fields[0])
        for path, fields in table.paths.items()
        if fields[0]["type"] in kinds and "*" not in path
    ]


@cache
def _arithmetic() -> list[tuple[str, str]]:
    """GPUs and the checkpoints that they have the arithmetic for."""
    facts = {name: checkpoint.gather(name) for name in NAMES}
    return [
        (gpu, name)
        for gpu in hardware.known()
        for name in NAMES
        if facts[name].precision in hardware.load(gpu).precisions
    ]


@st.composite
def deployments(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(release.known()))
    gpu, reference = draw(st.sampled_from(_arithmetic()))
    overrides: dict[str, Any] = {}
    for path, field in draw(st.lists(st.sampled_from(overridable(name)), max_size=2)):
        *parents, last = path.split(".")
        place = overrides
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = draw(option_values(field))
    return {
        "name": "generated",
        "checkpoint": reference,
        "hardware": {"gpu": gpu, "num_gpus": draw(st.sampled_from([1, 2, 4, 4, 8]))},
        "engine": {"name": "tensorrt_llm", "release": name},
        "workload": {
            "isl": draw(st.sampled_from([1, 100, 1024, 8192, 20000])),
            "osl": draw(st.sampled_from([1, 128, 1024])),
            "concurrency": draw(st.sampled_from([1, 2, 16, 64, 300, 1024])),
        },
        "role": draw(st.sampled_from(["agg", "agg", "prefill", "decode"])),
        "targets": draw(
            st.sampled_from([["trtllm_serve"], ["triton"], ["trtllm_serve", "triton"]])
        ),
        "engine_config": overrides,
    }


def rendered(deployment: Mapping[str, Any], folder: Path) -> Path | None:
    """The bundle of a deployment, or `None` where it is refused."""
    request = folder / "deployment.yaml"
    request.write_text(yaml.safe_dump(dict(deployment)))
    try:
        return pipeline.render(str(request), folder / "bundle", force=True).folder
    except (BadInput, BadFacts):
        return None


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(deployment=deployments())
def test_what_plan_accepts_has_no_check_error(deployment: dict[str, Any]) -> None:
    with TemporaryDirectory() as name:
        folder = rendered(deployment, Path(name))
        event("accepted" if folder else "refused")
        if folder is None:
            return
        report = check.check([folder], check.Request(), lambda *_: ())
        errors = [row for row in report.findings if row.severity == "error"]
        assert errors == []
        assert len(report.files) > len(deployment["targets"])


def test_the_generated_deployments_are_not_all_refused(tmp_path: Path) -> None:
    """Every known model has a deployment that plan accepts, on some GPU."""
    refused = []
    for name in NAMES:
        accepted = any(
            rendered(_plain(name, gpu, known), tmp_path)
            for gpu in hardware.known()
            for known in reversed(release.known())
        )
        refused += [] if accepted else [name]
    assert refused == []


def _plain(name: str, gpu: str, known: str) -> dict[str, Any]:
    return {
        "name": "generated",
        "checkpoint": name,
        "hardware": {"gpu": gpu, "num_gpus": hardware.load(gpu).gpus_per_node},
        "engine": {"release": known},
        "workload": {"isl": 512, "osl": 128, "concurrency": 8},
        "targets": list(targets.NAMES)[:1],
    }
