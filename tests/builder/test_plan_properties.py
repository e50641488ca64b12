"""Whatever `plan` accepts, `check` accepts too: over generated deployments and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from builder import engines as engine
from builder import lint as check
from builder import pipeline
from builder.deployment import Deployment
from builder.engines import EngineConfig
from builder.errors import BadFacts, BadInput
from builder.facts import checkpoint, hardware, model_names, release
from builder.planning import Facts, Plan, plan
from builder.rules.constraints import disagreements, violations

EXAMPLES = 50

NAMES = [
    name
    for name in model_names.known_names()
    if not checkpoint.gather(name).architecture.draft_head
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
        if facts[name].precision in hardware.load(gpu).precisions.value
    ]


# Lengths just below and above what rules and defaults turn on.
LENGTHS = [1, 100, 1024, 4096, 4097, 8065, 8192, 8193, 16385, 19873, 20000, 25000, 32767, 32768]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A deployment of which every engine value is left to the planner."""
    gpu, reference = draw(st.sampled_from(_arithmetic()))
    return {
        "name": "generated",
        "checkpoint": reference,
        "hardware": {"gpu": gpu, "num_gpus": draw(st.sampled_from([1, 2, 4, 4, 8]))},
        "engine": {"release": draw(st.sampled_from(release.known()))},
        "workload": {
            "isl": draw(st.sampled_from(LENGTHS)),
            "osl": draw(st.sampled_from([1, 1024])),
            "concurrency": draw(st.sampled_from([1, 16, 64, 128, 1190, 1191, 5000])),
        },
        "role": draw(st.sampled_from(["agg", "prefill", "decode"])),
        "targets": {"trtllm_serve": {}},
    }


@cache
def _facts(name: str) -> checkpoint.Checkpoint:
    return checkpoint.gather(name)


def planned(request: Mapping[str, Any]) -> tuple[Plan, EngineConfig]:
    """A plan of facts that ship, and its options. Raises `BadInput`."""
    deployment = Deployment.of(request)
    table, gpu = release.load(deployment.engine.release), hardware.load(deployment.hardware.gpu)
    decided = plan(deployment, Facts(_facts(deployment.checkpoint), gpu, table))
    return decided, engine.translate(decided)


# Found by exploring: no source says whether the release reads MXFP8 weights on this GPU.
_UNKNOWN_WEIGHTS = {
    "name": "generated",
    "checkpoint": "nvidia/MiniMax-M3-NVFP4",
    "hardware": {"gpu": "rtx_pro_6000", "num_gpus": 4},
    "engine": {"release": "1.3.0rc23"},
    "workload": {"isl": 1, "osl": 1, "concurrency": 1},
    "role": "agg",
    "targets": {"trtllm_serve": {}},
}


@settings(max_examples=EXAMPLES)
@given(request=requests())
@example(request=_UNKNOWN_WEIGHTS)
def test_what_the_planner_chose_itself_breaks_no_rule(request: dict[str, Any]) -> None:
    """Neither a warning nor a refusal is about a value that nobody asked for.

    What a rule says of the request alone, with no option set, is about no value of the planner.
    """
    try:
        found, config = planned(request)
    except BadInput as fault:
        event("refused")
        assert not [row for row in fault.diagnostics if row.where.startswith("engine_config")]
        return
    event("accepted")
    of_request = {row.rule for row in violations({}, found.facts.rule_context(found.deployment))}
    own = [row for row in config.warnings if row.rule not in of_request]
    # What is known to be wrong with a version and this model is about no value either.
    assert [row for row in own if (row.rule, row.where) != ("known-issue", "checkpoint")] == []


@settings(max_examples=EXAMPLES)
@given(request=requests(), other=requests(), instances=st.sampled_from([1, 1, 2]))
def test_both_sides_of_a_service_agree(
    request: dict[str, Any], other: dict[str, Any], instances: int
) -> None:
    """The same model, release and workload on whatever GPUs."""
    sides = []
    for role, hardware_of in (("prefill", request), ("decode", other)):
        side = {**request, "role": role, "hardware": hardware_of["hardware"]}
        try:
            sides.append(planned({**side, "instances": instances if role == "decode" else 1}))
        except BadInput:
            event("refused")
            return
    event("accepted")
    (one, prefill), (_, decode) = sides
    context = one.facts.rule_context(one.deployment)
    assert list(disagreements(prefill.options, decode.options, context)) == []


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
    role = draw(st.sampled_from(["agg", "agg", "prefill", "decode"]))
    servers = [["trtllm_serve"], ["triton"], ["trtllm_serve", "triton"]]
    return {
        "name": "generated",
        "checkpoint": reference,
        "hardware": {"gpu": gpu, "num_gpus": draw(st.sampled_from([1, 2, 4, 4, 8]))},
        "engine": {"name": "tensorrt_llm", "release": name},
        "workload": {
            "isl": draw(st.sampled_from(LENGTHS)),
            "osl": draw(st.sampled_from([1, 128, 1024])),
            "concurrency": draw(st.sampled_from([1, 2, 16, 64, 300, 1024])),
        },
        "role": role,
        "targets": draw(st.sampled_from(servers if role == "agg" else servers[:1])),
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


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(deployment=deployments())
def test_what_plan_accepts_has_no_check_error(deployment: dict[str, Any]) -> None:
    with TemporaryDirectory() as name:
        folder = rendered(deployment, Path(name))
        event("accepted" if folder else "refused")
        if folder is None:
            return
        report = check.check([folder], check.CheckOptions(), lambda *_: ())
        errors = [row for row in report.findings if row.severity == "error"]
        assert errors == []
        assert len(report.files) > len(deployment["targets"])


def test_the_generated_deployments_are_not_all_refused(tmp_path: Path) -> None:
    """Every known model has a deployment that plan accepts, on some GPU."""
    refused = []
    largest_first = sorted(map(hardware.load, hardware.known()), key=lambda gpu: -gpu.memory_gib)
    for name in NAMES:
        accepted = any(
            rendered(_plain(name, gpu.name, known), tmp_path)
            for gpu in largest_first
            for known in reversed(release.known())
        )
        refused += [] if accepted else [name]
    assert refused == []


def _plain(name: str, gpu: str, known: str) -> dict[str, Any]:
    return {
        "name": "generated",
        "checkpoint": name,
        "hardware": {"gpu": gpu, "num_gpus": hardware.load(gpu).gpus_per_node.value},
        "engine": {"release": known},
        "workload": {"isl": 512, "osl": 128, "concurrency": 8},
        "targets": ["trtllm_serve"],
    }
