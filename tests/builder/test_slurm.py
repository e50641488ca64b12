"""The target `slurm`: where servers stand, what a job asks for, and what it runs.

Jobs on one node, on four, and with both sides of disaggregated serving are golden bundles too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import deployment, pipeline
from builder.bundle import Bundle
from builder.errors import BadInput
from builder.facts import network_checks
from builder.lint import CheckOptions as CheckRequest
from builder.lint import check
from builder.lint.read.shell import read_script
from builder.lint.read.slurm import read_job
from builder.targets.slurm import layout
from builder.targets.slurm.layout import segment
from builder.verification import verify
from tests.conftest import ROOT
from tests.tables import by_table

SITE: dict[str, Any] = {
    "name": "here",
    "gpu_request": "gpus_per_node",
    "container": {"runtime": "none"},
    "mpi": "pmix",
    "exclusive": True,
}
R1: dict[str, Any] = {
    "name": "r1",
    "checkpoint": "nvidia/DeepSeek-R1-0528-NVFP4",
    "hardware": {"gpu": "gb200", "num_gpus": 4},
    "engine": {"release": "1.2.1"},
    "workload": {"isl": 1024, "osl": 1024, "concurrency": 64},
}
LLAMA = yaml.safe_load((deployment.PRESETS / "llama-3.3-70b-fp8-h100.yaml").read_text())
CHECKPOINT = "nvidia/DeepSeek-V3.2-NVFP4"
DECODE = "deepseek-v3.2-nvfp4-gb300-decode"
PREFILL = "deepseek-v3.2-nvfp4-gb300-prefill"

Render = Callable[..., Bundle]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """The bundle of a deployment with the target slurm on a site that differs from `SITE` so."""

    def make(
        request: Mapping[str, Any] = R1,
        site: Mapping[str, Any] | None = None,
        server: str = "trtllm_serve",
        changes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Bundle:
        profile = tmp_path / "site.yaml"
        profile.write_text(yaml.safe_dump({**SITE, **(site or {})}))
        targets = {server: {}, "slurm": {"site": "site.yaml", **options}}
        file = tmp_path / "deployment.yaml"
        file.write_text(yaml.safe_dump({**request, "targets": targets, **(changes or {})}))
        return pipeline.render(str(file), tmp_path / "bundle", force=True)

    return make


def service(bundle: Bundle) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((bundle.folder / "slurm/service.json").read_bytes())
    return document


def steps(bundle: Bundle) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in service(bundle)["steps"]}


def directives(text: str) -> list[list[str]]:
    """The sbatch options of each job component in their long form."""
    return [
        [f"--{row.name}" if row.value is None else f"--{row.name}={row.value}" for row in part]
        for part in read_job(read_script(text)).parts
    ]


def asked(bundle: Bundle, script: str = "serve") -> list[str]:
    (part,) = directives((bundle.folder / f"slurm/{script}.sbatch").read_text())
    return part


def faults(render: Render, *arguments: Any, **options: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        render(*arguments, **options)
    return [str(row) for row in caught.value.diagnostics]


@by_table
def test_an_image_of_a_site_that_a_tag_alone_names_is_warned_of(
    render: Render, tmp_path: Path, image: str, is_warned: bool
) -> None:
    container = {"runtime": "pyxis", "images": {"trtllm_serve": image}}
    render(site={"container": container})
    found = pipeline.plan(str(tmp_path / "deployment.yaml")).warnings
    warned = [row.where for row in found if "has no digest" in row.message]
    assert warned == (["targets.slurm.site.container.images.trtllm_serve"] if is_warned else [])


# --- Shapes


@pytest.mark.parametrize("server", ["trtllm_serve", "triton"])
def test_the_script_of_several_nodes_does_not_start_alone(render: Render, server: str) -> None:
    bundle = render({**R1, "hardware": {"gpu": "gb200", "num_gpus": 8}}, server=server)
    assert bundle.launch["targets"][server]["nodes"] == 2
    script = bundle.folder / server / "serve.sh"
    ended = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "needs 2 nodes: start it with slurm/serve.sbatch, or start it by" in ended.stderr


def test_launch_refuses_to_start_one_rank_of_several_nodes(render: Render, tmp_path: Path) -> None:
    bundle = render({**R1, "hardware": {"gpu": "gb200", "num_gpus": 8}})
    command = [sys.executable, "-m", "launch", "up", str(bundle.folder)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "needs 2 nodes, this is one; run it as a job of Slurm" in ended.stderr


def test_a_server_of_several_nodes_for_kubernetes_alone_names_no_job(tmp_path: Path) -> None:
    request = {**R1, "hardware": {"gpu": "gb200", "num_gpus": 8}, "targets": {}}
    request["targets"] = {"trtllm_serve": {}, "kubernetes": {}}
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(request))
    folder = pipeline.render(str(tmp_path / "deployment.yaml"), tmp_path / "bundle").folder
    started = [["bash", str(folder / "trtllm_serve/serve.sh")]]
    started += [[sys.executable, "-m", "launch", "up", str(folder)]]
    for command, way in zip(started, ("apply kubernetes/", "kubectl apply -k"), strict=True):
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ended.returncode, way in ended.stderr) == (2, True), ended.stderr
        assert "slurm" not in ended.stderr


def test_instances_share_a_node_behind_a_router(render: Render) -> None:
    found = steps(bundle := render(LLAMA, server="triton"))
    assert list(found) == ["server0", "server1", "router"]
    assert [found[f"server{n}"]["gpu_indices"] for n in (0, 1)] == [[0], [1]]
    assert "CUDA_VISIBLE_DEVICES=1" in found["server1"]["launcher"]
    assert found["server1"]["environment"]["SERVE_HOST"] == "127.0.0.1"
    assert found["server1"]["ports"] == {"http": 8010, "grpc": 8011, "metrics": 8012}
    assert found["router"]["start_after"] == ["server0", "server1"]
    assert {"--overlap", "--gres=none"} < set(found["router"]["srun"])
    assert service(bundle)["front"] == "router"
    text = (bundle.folder / "slurm/router.cfg").read_text()
    line = "server server1 127.0.0.1:{port:server1:grpc} check port {port:server1:http} proto h2"
    assert f"{line} check-proto h1" in text
    assert found["router"]["files"] == {"router.cfg": "slurm/router.cfg"}


def test_the_router_refuses_json_that_would_end_triton(render: Render, tmp_path: Path) -> None:
    """HAProxy takes the file as the supervisor fills it, with the filter of the bundle."""
    bundle = render(LLAMA, server="triton")
    text = (bundle.folder / "slurm/router.cfg").read_text()
    filled = re.sub(r"\{port:[^}]*\}", "8000", text.replace("{bundle}", str(bundle.folder)))
    assert f'lua-load-per-thread "{bundle.folder}/triton/json_depth.lua"' in filled
    http = filled.partition("frontend http\n")[2].partition("\nbackend")[0]
    assert "    filter lua.json_depth 100\n" in http and "content-encoding" in http
    assert filled.count("filter lua") == 1  # what goes over gRPC is no JSON
    (tmp_path / "router.cfg").write_text(filled)
    haproxy = shutil.which("haproxy") or pytest.skip("haproxy is not installed")
    argv = [haproxy, "-c", "-f", str(tmp_path / "router.cfg")]
    checked = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_router_of_other_servers_reads_no_bodies(render: Render) -> None:
    text = (render(LLAMA, server="trtllm_serve").folder / "slurm/router.cfg").read_text()
    assert "lua" not in text


def test_nodes_are_checked_before_disaggregated_serving(render: Render) -> None:
    """With the variables of the servers: one that jobs inherit is unset for them."""
    prefill = {"deployment": PREFILL, "servers": 1}
    found = service(render(preset(DECODE), prefill=prefill))["network"]
    assert found["environment"]["UCX_TLS"] is None
    assert found["checks"] == network_checks.load()
    assert "network" not in service(render(preset(DECODE)))


def test_both_sides_of_disaggregated_serving_share_a_job(render: Render) -> None:
    prefill = {"deployment": PREFILL, "servers": 3}
    found = steps(bundle := render(preset(DECODE), prefill=prefill))
    places = {name: (row["first_node"], row["gpu_indices"]) for name, row in found.items()}
    assert places == {
        "prefill0": (0, [0, 1]),
        "prefill1": (0, [2, 3]),
        "prefill2": (1, [0, 1]),
        "decode0": (1, [2, 3]),
        "router": (0, None),
    }
    assert found["prefill0"]["argv"] == ["bash", "prefill/trtllm_serve/serve.sh"]
    options = yaml.safe_load((bundle.folder / "slurm/disaggregated.yaml").read_text())
    assert options["context_servers"]["urls"][2] == "{prefill2}:{port:prefill2:http}"
    decode = {"num_instances": 1, "urls": ["{decode0}:{port:decode0:http}"]}
    assert options["generation_servers"] == decode
    assert found["router"]["files"] == {"disaggregated.yaml": "slurm/disaggregated.yaml"}


def test_sides_of_unlike_nodes_are_parts_of_a_heterogeneous_job(render: Render) -> None:
    prefill = {**R1, "name": "p", "role": "prefill", "targets": ["trtllm_serve"]}
    request = {**R1, "role": "decode", "hardware": {"gpu": "gb200", "num_gpus": 8}}
    bundle = render(request, prefill={"deployment": prefill, "servers": 3}, servers=2)
    parts = directives((bundle.folder / "slurm/serve.sbatch").read_text())
    assert ["--nodes=3" in parts[0], "--nodes=4" in parts[1]] == [True, True]
    found = steps(bundle)
    assert [found[name]["het_group"] for name in ("prefill2", "decode1", "router")] == [0, 1, 0]
    assert (found["prefill2"]["first_node"], found["decode1"]["first_node"]) == (2, 2)


def preset(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((deployment.PRESETS / f"{name}.yaml").read_text())
    return document


@pytest.mark.parametrize("servers", [1, 7, 40])
@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_no_gpu_has_two_servers(gpus: int, servers: int) -> None:
    found = layout.place([layout.ServerGroup("agg", servers, gpus, gpus)], 4)
    places = found.places[0]
    taken = [(place.first_node, gpu) for place in places for gpu in place.gpus or range(gpus)]
    assert len(set(taken)) == len(taken) == servers * gpus
    assert all(gpu < 4 and node < found.parts[0].nodes for node, gpu in taken)


@pytest.mark.parametrize(
    ("nodes", "server_nodes", "block", "expected"),
    [(4, 4, 18, 4), (36, 4, 18, 12), (20, 4, 18, 4), (19, 1, 18, 1), (8, 8, 4, 4)],
)
def test_segments_divide_the_nodes_and_keep_servers_whole(
    nodes: int, server_nodes: int, block: int, expected: int
) -> None:
    assert segment(layout.JobPart(nodes, 4, 4, server_nodes), block) == expected


# --- What the site says


def test_nothing_is_asked_for_that_the_site_does_not_say(render: Render) -> None:
    names = {line.partition("=")[0] for line in asked(render())}
    unsaid = ("partition", "account", "qos", "reservation", "constraint", "segment")
    assert not names & {f"--{name}" for name in unsaid}


def test_the_site_is_obeyed(render: Render) -> None:
    site = {
        "gpu_request": "gres",
        "gpu_type": "gb200",
        "partition": "batch",
        "account": "project",
        "qos": "high",
        "block_size": 18,
        "memory_nodes": "0,1",
        "environment": {"NCCL_MNNVL_ENABLE": 1, "UCX_TLS": "all"},
        "checkpoints": {R1["checkpoint"]: "/models/r1"},
        "sbatch": ["--mail-type=FAIL"],
        "srun": ["--quiet"],
    }
    bundle = render({**R1, "hardware": {"gpu": "gb200", "num_gpus": 8}}, site)
    lines = asked(bundle)
    assert {"--gres=gpu:gb200:4", "--partition=batch", "--account=project"} < set(lines)
    assert {"--segment=2", "--qos=high", "--mail-type=FAIL"} < set(lines)
    (step,) = service(bundle)["steps"]
    assert step["launcher"] == ["env", "trtllm-llmapi-launch", "numactl", "-m", "0,1"]
    assert step["environment"]["CHECKPOINT"] == "/models/r1"
    assert step["environment"]["NCCL_MNNVL_ENABLE"] == "1"
    assert step["srun"][-1] == "--quiet"
    assert service(bundle)["model"] == "r1"


def test_a_shared_node_gets_processors_and_memory_by_number(render: Render) -> None:
    bundle = render(site={"exclusive": False, "cpus_per_node": 64, "memory_gib_per_node": 400})
    assert {"--cpus-per-task=16", "--mem=400G"} < set(asked(bundle))
    assert "--exclusive" not in asked(bundle)


def test_containers_by_pyxis_are_options_of_srun_only(render: Render) -> None:
    images = {"trtllm_serve": "/images/engine.sqsh"}
    container = {"runtime": "pyxis", "images": images, "mounts": ["/models:/models:ro", "/data"]}
    bundle = render(site={"container": container})
    (step,) = service(bundle)["steps"]
    mounts = "{bundle}:{bundle}:ro,{job}:{job},/models:/models:ro,/data:/data"
    assert {"--container-image=/images/engine.sqsh", f"--container-mounts={mounts}"} < set(
        step["srun"]
    )
    assert not [line for line in asked(bundle) if "container" in line]


def test_containers_by_apptainer_stand_before_the_launcher(render: Render) -> None:
    container = {"runtime": "apptainer", "images": {"trtllm_serve": "/images/engine.sif"}}
    (step,) = service(render(site={"container": container}))["steps"]
    assert step["launcher"][:3] == ["apptainer", "exec", "--nv"]
    assert step["launcher"][5] == "/images/engine.sif"


def test_without_mpi_the_engine_starts_its_ranks_itself(render: Render) -> None:
    bundle = render(site={"mpi": "none"})
    (step,) = service(bundle)["steps"]
    assert (step["ntasks"], step["launcher"][-2:]) == (1, ["bash", "slurm/alone.sh"])
    command = ["bash", str(bundle.folder / "slurm/alone.sh"), "env"]
    environment = {"SLURM_JOB_ID": "1", "PMIX_RANK": "0", "PMI_RANK": "0", "KEPT": "yes"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    names = {line.partition("=")[0] for line in shown.stdout.splitlines()}
    assert not names & environment.keys() - {"KEPT"}
    assert "KEPT" in names


def test_the_toolkit_on_the_cluster_gives_the_smoke_suite_and_the_benchmark(render: Render) -> None:
    bundle = render(site={"toolkit": "/opt/toolkit/bin/python"}, server="triton")
    ports = "grpc={port:grpc}&metrics={port:metrics}"
    url = f"triton://{{host}}:{{port:http}}?{ports}&model=tensorrt_llm"
    assert service(bundle)["smoke"]["argv"][-2:] == [url, "--json"]
    assert "--array=0-6%1" in asked(bundle, "bench")
    assert not (render().folder / "slurm/bench.sbatch").exists()


def test_the_router_of_both_sides_does_not_tell_its_model(render: Render) -> None:
    site = {"toolkit": "/opt/toolkit/bin/python", "checkpoints": {CHECKPOINT: "/models/of+all"}}
    bundle = render(preset(DECODE), site, prefill={"deployment": PREFILL})
    url = service(bundle)["smoke"]["argv"][-2]
    assert url == "http://{host}:{port:http}?model=of%2Ball"


def test_servers_listen_on_every_address_unless_on_that_of_their_node(render: Render) -> None:
    hosts = {}
    for given in ({}, {"host": "node"}, {"host": "10.0.0.7"}):
        found = steps(bundle := render(preset(DECODE), prefill={"deployment": PREFILL}, **given))
        options = yaml.safe_load((bundle.folder / "slurm/disaggregated.yaml").read_text())
        servers = {found[name]["environment"]["SERVE_HOST"] for name in ("prefill0", "decode0")}
        hosts[given.get("host")] = {options["hostname"], *servers}
    assert hosts == {None: {"0.0.0.0"}, "node": {"{host}"}, "10.0.0.7": {"10.0.0.7"}}


def test_a_router_listens_where_its_servers_need_not(render: Render) -> None:
    found = steps(bundle := render(LLAMA, server="triton", host="node"))
    assert found["server0"]["environment"]["SERVE_HOST"] == "127.0.0.1"
    assert "bind {host}:{port:http}" in (bundle.folder / "slurm/router.cfg").read_text()


# --- The bundle


def test_a_bundles_deployment_renders_the_same_bundle(render: Render, tmp_path: Path) -> None:
    """It holds the profile itself, and the other side of the service."""
    first = render(preset(DECODE), prefill={"deployment": PREFILL, "servers": 2})
    again = pipeline.render(str(first.folder / "deployment.yaml"), tmp_path / "again")
    assert again.digest == first.digest


def test_the_supervisor_is_copied_byte_for_byte(render: Render) -> None:
    copies = sorted((render().folder / "slurm/supervisor").iterdir())
    sources = sorted((ROOT / "supervisor").glob("*.py"))
    assert [path.name for path in copies] == [path.name for path in sources]
    assert [path.read_bytes() for path in copies] == [path.read_bytes() for path in sources]


def test_running_the_supervisor_leaves_the_bundle_whole(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the bundle's path has blanks; without a job it only says how it is used."""
    folder = tmp_path / "a bundle"
    shutil.copytree(render().folder, folder)
    (script,) = re.findall(r"^exec (.*)$", (folder / "slurm/serve.sbatch").read_text(), re.M)
    asked = script.replace(' serve "$bundle/slurm"', " serve --help")
    assert asked != script
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    done = subprocess.run(
        ["bash", "-c", f'bundle="{folder}"; exec {asked}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "usage: supervisor serve" in done.stdout
    assert verify(folder).damage == []


@pytest.mark.parametrize("script", ["serve", "preflight"])
@pytest.mark.parametrize("changed", [None, "slurm/service.json", "trtllm_serve/serve.sh"])
def test_a_job_starts_nothing_but_what_was_rendered(
    script: str, changed: str | None, render: Render, tmp_path: Path
) -> None:
    """Where Slurm keeps a copy of the script itself from the submission on."""
    folder = render(site={"python": "/bin/echo"}).folder
    spooled = shutil.copy(folder / f"slurm/{script}.sbatch", tmp_path)
    if changed:
        (folder / changed).write_bytes((folder / changed).read_bytes() + b" ")
    done = subprocess.run(
        ["bash", spooled],
        env={**os.environ, "BUNDLE": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    started = f"-B {folder}/slurm/supervisor {script} {folder}/slurm\n"
    expected = (2, f"{changed}: FAILED\n") if changed else (0, started)
    assert (done.returncode, done.stdout) == expected, done.stderr


def test_rendered_scripts_are_clean(render: Render) -> None:
    found = render(LLAMA, {"toolkit": "/opt/python", "mpi": "none"}, "triton").folder / "slurm"
    scripts = sorted([*found.glob("*.sbatch"), *found.glob("*.sh")])
    assert len(scripts) == 4
    shellcheck = Path(sys.executable).with_name("shellcheck")
    subprocess.run([shellcheck, *scripts], check=True)


@pytest.mark.parametrize("name", deployment.preset_names())
def test_every_preset_runs_under_slurm_and_passes_check(name: str, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(SITE))
    changes = [f"targets.slurm.site={tmp_path}/site.yaml", "targets.slurm.server=trtllm_serve"]
    bundle = pipeline.render(name, tmp_path / "bundle", changes)
    report = check([bundle.folder / "slurm"], CheckRequest(), pipeline.deployment_diagnostics)
    assert [str(row) for row in report.findings] == []
    assert {"preflight.sbatch", "serve.sbatch"} <= {Path(row.file).name for row in report.files}


@pytest.mark.parametrize(("gpu", "num_gpus", "each"), [("gb200", 16, 4), ("b200", 16, 8)])
def test_preflight_takes_one_node_of_the_service_and_all_of_its_gpus(
    render: Render, gpu: str, num_gpus: int, each: int
) -> None:
    """However many nodes the service has, and however many GPUs a node of its GPU has."""
    bundle = render({**R1, "hardware": {"gpu": gpu, "num_gpus": num_gpus}})
    assert f"--nodes={num_gpus // each}" in asked(bundle)
    preflight = {f"--gpus-per-node={each}", "--nodes=1", f"--ntasks={each}"}
    assert preflight < set(asked(bundle, "preflight"))
    assert service(bundle)["preflight"]["gpus"] == each


def test_a_rack_costs_no_more_than_a_node(render: Render) -> None:
    """Rendering for 1 and for 144 nodes; most of it is the plan, which knows no nodes."""

    def seconds(servers: int) -> float:
        request = {**R1, "role": "decode"}
        prefill = {**R1, "name": "p", "role": "prefill", "targets": ["trtllm_serve"]}
        begin = time.process_time()
        render(request, prefill={"deployment": prefill, "servers": servers})
        return time.process_time() - begin

    seconds(1)
    one, many = (min(seconds(servers) for _ in range(3)) for servers in (1, 143))
    assert many < 1.5 * one + 0.1


def test_segments_of_a_bundle_are_judged_by_the_block_of_its_site(render: Render) -> None:
    bundle = render({**R1, "hardware": {"gpu": "gb200", "num_gpus": 32}}, {"block_size": 4})
    script = bundle.folder / "slurm/serve.sbatch"
    text = script.read_text()
    for size, rules in (("4", set()), ("3", {"job-segment"}), ("8", {"job-segment"})):
        script.write_text(text.replace("--segment=4", f"--segment={size}"))
        found = check([script], CheckRequest(), pipeline.deployment_diagnostics).findings
        assert {row.rule for row in found} == rules


# --- What is refused


def test_a_deployment_without_a_site_is_told_how_to_name_one(render: Render) -> None:
    (fault,) = faults(render, changes={"targets": {"trtllm_serve": {}, "slurm": {}}})
    assert "targets.slurm: has no site; name the file of a profile, here or with --site" in fault


def test_site_is_an_argument_of_render_and_adds_the_target(
    tmp_path: Path, builder: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(SITE))
    done = builder("render", PREFILL, "--site", "site.yaml", "-o", "bundle")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundle/slurm/serve.sbatch").is_file()


@by_table
def test_what_cannot_be_a_job_is_refused(
    render: Render, changes: Mapping[str, Any], words: str
) -> None:
    assert any(words in fault for fault in faults(render, changes=changes))


@by_table
def test_wrong_options_are_refused(render: Render, options: dict[str, Any], words: str) -> None:
    assert any(words in fault for fault in faults(render, **options))


def test_ports_of_servers_that_share_a_node_are_apart(render: Render) -> None:
    targets = {"triton": {"grpc_port": 8010}, "slurm": {"site": SITE}}
    (fault,) = faults(render, {**LLAMA, "targets": targets}, changes={"targets": targets})
    assert "port 8010 is that of server 0 and of server 1" in fault


def test_sides_that_cannot_work_together_are_refused(render: Render) -> None:
    other = {**preset(PREFILL), "checkpoint": R1["checkpoint"]}
    found = faults(render, preset(DECODE), prefill={"deployment": other})
    assert any(f"deployment.checkpoint: is {R1['checkpoint']}, the decode" in f for f in found)
