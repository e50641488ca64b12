"""Deployments on vLLM: the same request in its words, its own sum of memory, its own server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.errors import BadInput
from builder.pipeline import ServicePlan
from tests.conftest import ROOT
from tests.tables import by_table

ENGINE = "engine={name: vllm, release: 0.32.0}"
V32, LLAMA = "deepseek-v3.2-nvfp4-b300-vllm", "llama-3.3-70b-fp8-h100-vllm"


def options(planned: ServicePlan) -> dict[str, Any]:
    return {row.path: row.value for row in planned.engine.decisions}


def test_a_deployment_that_changes_nothing_but_its_engine_plans_for_both(tmp_path: Path) -> None:
    one = pipeline.plan("llama-tiny", ["targets={trtllm_serve: {port: 9000}}"])
    other = pipeline.plan("llama-tiny", ["targets={trtllm_serve: {port: 9000}}", ENGINE])
    assert options(one)["max_batch_size"] == options(other)["max_num_seqs"] == 16
    [server] = other.context.servers.values()
    assert server.record.name == "vllm_serve"
    assert server.ports == {"http": 9000}


def test_a_server_that_another_target_starts_is_the_engines_own_too() -> None:
    targets = "targets={trtllm_serve: {}, compose: {server: trtllm_serve}}"
    planned = pipeline.plan("llama-tiny", [targets, ENGINE])
    assert planned.plan.deployment.targets["compose"]["server"] == "vllm_serve"


def test_every_option_is_in_the_words_of_the_engine_and_has_a_reason() -> None:
    planned = pipeline.plan(V32)
    table = planned.plan.facts.release
    for row in planned.engine.decisions:
        assert row.path in table.paths, row.path
        assert row.reason and row.source


def test_many_requests_get_copies_of_the_attention_that_share_the_experts() -> None:
    found = options(pipeline.plan(V32, ["workload.concurrency=512"]))
    assert (found["data_parallel_size"], found["tensor_parallel_size"]) == (8, 1)
    assert found["enable_expert_parallel"] is True
    assert found["max_num_seqs"] == 64


def test_parallel_sizes_have_to_use_all_gpus() -> None:
    with pytest.raises(BadInput, match=r"3 copies of the attention cannot share 8 GPUs"):
        pipeline.plan(V32, ["engine_config.data_parallel_size=3"])
    with pytest.raises(BadInput, match=r"4 x pipeline_parallel_size 1 x data_parallel_size 4"):
        settings = "engine_config={data_parallel_size: 4, tensor_parallel_size: 4}"
        pipeline.plan(V32, [settings])


def test_the_kv_cache_is_what_the_share_of_all_memory_leaves() -> None:
    budget = pipeline.plan(V32).plan.budget
    whole, share = budget.total_gib, 0.9
    assert budget.kv_cache_gib == pytest.approx(whole * share - budget.used_gib)
    smaller = pipeline.plan(V32, ["engine_config.gpu_memory_utilization=0.5"]).plan.budget
    assert budget.kv_cache_gib - smaller.kv_cache_gib == pytest.approx(whole * 0.4)


def test_experts_whole_over_all_gpus_take_the_buffers_of_their_exchange() -> None:
    mixture, switch = "minimax-m2.5-nvfp4-b300-vllm", "engine_config.enable_expert_parallel"
    whole, split = (pipeline.plan(mixture, [f"{switch}={on}"]).plan for on in ("true", "false"))
    assert whole.budget.other_gib - split.budget.other_gib == pytest.approx(1.2)


def test_the_budget_is_near_the_one_published_log_and_says_how_far(tmp_path: Path) -> None:
    """vllm-project/vllm#21348: 8.11 GiB, 178,880 tokens, with what the release sets by itself."""
    request = {
        "name": "published",
        "checkpoint": "qwen3-235b-a22b-fp8",
        "hardware": {"gpu": "h100", "num_gpus": 4},
        "engine": {"name": "vllm", "release": "0.14.1"},
        "workload": {"isl": 4096, "osl": 1024, "concurrency": 256},
        "engine_config": {
            "gpu_memory_utilization": 0.9,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
        },
        "targets": {"vllm_serve": {}},
    }
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(request))
    planned = pipeline.plan(str(file))
    budget = planned.plan.budget
    assert budget.kv_cache_gib == pytest.approx(8.11, abs=budget.uncertainty_gib)
    assert budget.kv_bytes_per_token == pytest.approx(8.11 * 2**30 / 178_880, rel=0.02)
    [said] = [row.message for row in planned.warnings if "memory budget" in row.message]
    assert f"8.1 GiB of KV cache where the sum has {budget.kv_cache_gib:.1f}" in said


def test_groups_are_json_text_for_a_release_that_reads_no_others(tmp_path: Path) -> None:
    old = "engine={name: vllm, release: 0.14.1}"
    for name, overrides in {"new": [], "old": [old]}.items():
        pipeline.render(V32, tmp_path / name, overrides)
    files = {
        name: yaml.safe_load((tmp_path / name / "vllm_serve" / "config.yaml").read_text())
        for name in ("new", "old")
    }
    meant = {"method": "mtp", "num_speculative_tokens": 3}
    assert files["new"]["speculative_config"] == meant
    assert json.loads(files["old"]["speculative_config"]) == meant


@by_table
def test_a_server_on_several_nodes_is_refused_where_nothing_starts_it(
    targets: str, remedy: str
) -> None:
    with pytest.raises(BadInput, match="more than one node") as error:
        pipeline.plan(V32, ["hardware.num_gpus=16", f"targets={targets}"])
    assert remedy in str(error.value)


def slurm(folder: Path, **changes: Any) -> str:
    """A setting: the server as a job of a cluster, whose profile is written."""
    site = yaml.safe_load((ROOT / "tests" / "golden" / "site.yaml").read_text())
    site["container"]["images"]["vllm_serve"] = "/images/vllm-openai-v0.32.0.sqsh"
    profile = folder / "site.yaml"
    profile.write_text(yaml.safe_dump({**site, **changes}))
    return f"targets={{vllm_serve: {{}}, slurm: {{server: vllm_serve, site: {profile}}}}}"


PROGRAM = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


@pytest.mark.parametrize("release", ["0.14.1", "0.20.0", "0.32.0"])
def test_on_several_nodes_each_runs_the_same_command_with_its_number(
    tmp_path: Path, release: str
) -> None:
    engine = f"engine={{name: vllm, release: {release}}}"
    settings = [slurm(tmp_path, mpi="none"), "hardware.num_gpus=16", engine]
    folder = pipeline.render(V32, tmp_path / "bundle", settings).folder
    given = yaml.safe_load((folder / "vllm_serve" / "config.yaml").read_text())
    sizes = (given["tensor_parallel_size"], given.get("data_parallel_size", 1))
    assert (given["nnodes"], sizes[0] * sizes[1]) == (2, 16)
    [step] = json.loads((folder / "slurm" / "service.json").read_text())["steps"]
    assert [step[key] for key in ("nodes", "ntasks", "ntasks_per_node")] == [2, 2, 1]
    assert step["environment"]["SERVE_HEAD"] == "{host}"
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    search = f"{program.parent}:{os.environ['PATH']}"

    def words(**variables: str) -> subprocess.CompletedProcess[str]:
        """Of the server's command on one node, as the step of a job starts it."""
        return subprocess.run(
            [*step["launcher"][step["launcher"].index("bash") :][:2], *step["argv"]],
            env={**os.environ, "PATH": search, "SERVE_HEAD": "node-a", **variables},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    head, other = (words(SLURM_PROCID=number).stdout.split() for number in "01")
    assert head[head.index("--node-rank") :][:4] == ["--node-rank", "0", "--master-addr", "node-a"]
    assert other[other.index("--node-rank") :][:2] == ["--node-rank", "1"]
    assert ("--headless" in head, "--headless" in other) == (False, True)
    alone = words(SLURM_PROCID="0", SERVE_HEAD="")
    assert (alone.returncode, "needs 2 nodes" in alone.stderr) == (2, True)


def test_each_pod_of_a_group_runs_the_same_command_with_its_number(tmp_path: Path) -> None:
    targets = "targets={vllm_serve: {}, kubernetes: {server: vllm_serve}}"
    bundle = pipeline.render(V32, tmp_path / "bundle", ["hardware.num_gpus=16", targets])
    group = yaml.safe_load((bundle.folder / "kubernetes/base/workload.yaml").read_text())
    parts = group["spec"]["leaderWorkerTemplate"]
    assert (group["kind"], parts["size"]) == ("LeaderWorkerSet", 2)
    templates = (parts["leaderTemplate"], parts["workerTemplate"])
    head, other = (template["spec"]["containers"][0] for template in templates)
    files = {row.name: row for row in (bundle.folder / "kubernetes").rglob("*") if row.is_file()}
    assert not {"group.sh", "rank.sh"} & files.keys()
    assert not any("ssh" in row.read_text() for row in files.values())
    assert "ssh" not in json.dumps([parts, bundle.manifest["warnings"]])
    assert {"startupProbe", "readinessProbe", "livenessProbe", "ports"} <= head.keys()
    # The others listen to nobody.
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & other.keys()
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    resolver = program.with_name("getent")
    resolver.write_text('#!/bin/sh\necho "127.0.0.1 $2"\n')
    resolver.chmod(0o755)

    def words(container: dict[str, Any], number: int) -> list[str]:
        """Of the server's command, as the container's shell starts it."""
        given = {"LWS_WORKER_INDEX": str(number), "LWS_LEADER_ADDRESS": "group-0.group"}
        command = [word.replace("/bundle", str(bundle.folder)) for word in container["command"]]
        search = f"{program.parent}:{os.environ['PATH']}"
        own = {row["name"]: row["value"] for row in container["env"]}
        environment = {**own, **given, "PATH": search, "TMPDIR": str(tmp_path)}
        return subprocess.check_output(command, env=environment, text=True).split()

    asked = [words(head, 0), words(other, 1)]
    of_head = ["--node-rank", "0", "--master-addr", "group-0.group"]
    assert asked[0][asked[0].index("--node-rank") :][:4] == of_head
    assert asked[1][asked[1].index("--node-rank") :][:5] == [
        *of_head[:1],
        "1",
        *of_head[2:],
        "--headless",
    ]


def test_a_slurm_job_lets_the_engine_start_its_own_ranks(tmp_path: Path) -> None:
    bundle = pipeline.render(V32, tmp_path / "bundle", [slurm(tmp_path)])
    service = (bundle.folder / "slurm" / "service.json").read_text()
    assert "slurm/alone.sh" in service
    assert "--mpi=none" in service
    assert "trtllm" not in service


def test_what_surrounds_the_server_speaks_of_its_engine(tmp_path: Path) -> None:
    targets = "targets={vllm_serve: {}, compose: {server: vllm_serve}, monitoring: {}, handoff: {}}"
    folder = pipeline.render(V32, tmp_path / "bundle", [targets]).folder
    compose = next((folder / "compose").glob("*.yaml")).read_text()
    assert "docker.io/vllm/vllm-openai:v0.32.0" in compose
    rules = (folder / "monitoring" / "rules" / "recording.yml").read_text()
    assert "vllm:num_requests_running" in rules
    assert "on vLLM" in (folder / "handoff" / "runbook.md").read_text()
    assert "CVE" not in json.dumps(json.loads((folder / "launch.json").read_text()))
    bill = (folder / "handoff" / "sbom.cdx.json").read_text()
    assert "pkg:pypi/vllm@0.32.0" in bill


def test_tritons_backend_gets_the_engine_options_by_their_own_names(tmp_path: Path) -> None:
    bundle = pipeline.render(V32, tmp_path / "bundle", ["targets={triton_vllm: {}}"])
    model = bundle.folder / "triton_vllm" / "model_repository" / "vllm_model"
    assert 'backend: "vllm"' in (model / "config.pbtxt").read_text()
    given = json.loads((model / "1" / "model.json").read_text())
    assert given["model"] == "nvidia/DeepSeek-V3.2-NVFP4"
    assert given["tensor_parallel_size"] == 8
    assert given["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}


TRITON_SERVER = """\
#!/usr/bin/env bash
while [[ $1 != --model-repository ]]; do shift; done
cat "$2/vllm_model/1/model.json"
"""


@pytest.mark.parametrize("folder", ["weights", 'a "quoted" \\ name'])
def test_another_place_of_the_model_reaches_the_backend(tmp_path: Path, folder: str) -> None:
    """What stands in for the server shows the options that it was started with."""
    bundle = pipeline.render(LLAMA, tmp_path / "bundle", ["targets={triton_vllm: {}}"])
    server = tmp_path / "bin" / "tritonserver"
    server.parent.mkdir()
    server.write_text(TRITON_SERVER)
    server.chmod(0o755)
    model, draft = tmp_path / folder, tmp_path / "draft"
    model.mkdir()
    draft.mkdir()
    places = {"CHECKPOINT": str(model), "DRAFT_CHECKPOINT": str(draft)}
    search = f"{server.parent}:{os.environ['PATH']}"
    script = str(bundle.folder / "triton_vllm" / "serve.sh")
    done = subprocess.run(
        ["bash", script],
        env={**os.environ, **places, "PATH": search, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    given = json.loads(done.stdout)
    assert given["model"] == str(model)
    assert given["speculative_config"]["model"] == str(draft)
    assert given["max_num_seqs"] == 16


def test_a_pod_of_a_group_stays_until_the_first_one_is_gone(tmp_path: Path) -> None:
    """Until both of its ports are closed, whatever its name means by then."""
    targets = "targets={vllm_serve: {}, kubernetes: {server: vllm_serve}}"
    bundle = pipeline.render(V32, tmp_path / "bundle", ["hardware.num_gpus=16", targets])
    group = yaml.safe_load((bundle.folder / "kubernetes/base/workload.yaml").read_text())
    [other] = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    command = other["lifecycle"]["preStop"]["exec"]["command"]
    (tmp_path / "leader").write_text("127.0.0.1       group-0.group\n")
    http, ranks = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    for port, own in (("8000", http), ("29501", ranks)):
        own.settimeout(30)
        assert f"takes {port}" in command[2]
        command[2] = command[2].replace(f"takes {port}", f"takes {own.getsockname()[1]}")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "LWS_LEADER_ADDRESS": "another.invalid"}
    with subprocess.Popen(command, env=environment) as stays:
        http.accept()[0].close()
        http.close()
        ranks.accept()[0].close()  # it asks the ranks once the server's port is closed
        assert stays.poll() is None
        ranks.close()
        assert stays.wait(60) == 0
