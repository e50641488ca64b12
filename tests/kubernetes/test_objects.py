"""What the objects of a service say: files, times, machines, networks and names."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from builder import pipeline
from builder.bundle import File
from builder.render import yaml_document
from builder.targets.kubernetes import workload
from tests.kubernetes import cluster_files
from tests.kubernetes.cluster_files import ALL_PARTS, DIGEST, SEVERAL_NODES, config_maps, pod_files
from tests.monitoring.programs import program
from tests.tables import by_table

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "bundle"
    return cluster_files.render(folder, "deepseek-v3.2-nvfp4-gb200", "triton", *ALL_PARTS)


@pytest.fixture(scope="module")
def several_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "bundle"
    overrides = (*ALL_PARTS, *SEVERAL_NODES)
    return cluster_files.render(folder, "deepseek-v3.2-nvfp4-gb200", "trtllm_serve", *overrides)


@pytest.mark.parametrize("server", ["triton", "trtllm_serve"])
def test_a_pod_has_the_files_of_the_bundle_byte_for_byte(server: str, tmp_path: Path) -> None:
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", server)
    [pod] = cluster_files.served_pods(folder)
    found = pod_files(config_maps(folder), pod)
    bundle = folder.parent
    meant = {path for path in (bundle / server).rglob("*") if path.is_file()}
    meant |= set((bundle / "kubernetes").glob("*.sha256"))
    assert set(found) == {path.relative_to(bundle).as_posix() for path in meant}
    for path in meant:
        data, mode = found[path.relative_to(bundle).as_posix()]
        assert data == path.read_bytes()
        assert bool(mode & 0o111) == bool(path.stat().st_mode & 0o111)
        assert not mode & 0o222
    script = pod["containers"][0]["command"][1]
    assert script.removeprefix("/bundle/") in found


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.binary(max_size=200)))
def test_any_bytes_survive_a_config_map(contents: dict[str, bytes]) -> None:
    given_files = {path: File(data) for path, data in contents.items()}
    for files in workload.config_maps("x", given_files).values():
        text = yaml_document("A title.", {"kind": "ConfigMap", **workload.map_data(files)}).data
        document = yaml.safe_load(text)
        read = {key: value.encode() for key, value in document.get("data", {}).items()}
        binary = document.get("binaryData", {})
        read |= {key: base64.b64decode(value) for key, value in binary.items()}
        assert read == {path: contents[path] for path in files}


def test_files_that_one_map_cannot_hold_stand_in_several() -> None:
    given_files = {f"f{index}": File(bytes(80 * 1024)) for index in range(5)}
    found = workload.config_maps("x", given_files)
    assert [len(files) for files in found.values()] == [2, 2, 1]


def test_another_content_has_another_name() -> None:
    [one], [two] = (workload.config_maps("x", {"f": File(data)}) for data in (b"1", b"2"))
    assert one != two


def test_the_server_has_as_long_to_start_as_its_checkpoint_takes(tmp_path: Path) -> None:
    def limit_s(folder: str, *overrides: str) -> int:
        found = cluster_files.render(
            tmp_path / folder, "deepseek-v3.2-nvfp4-gb200", "triton", *overrides
        )
        probe = cluster_files.served_pods(found)[0]["containers"][0]["startupProbe"]
        return int(probe["failureThreshold"] * probe["periodSeconds"])

    found_s = limit_s("given")
    facts = json.loads((tmp_path / "given" / "checkpoint.json").read_text())
    gigabytes = facts["nbytes"] / 1e9
    assert found_s == pytest.approx(900 + gigabytes / 0.35, abs=10)
    assert limit_s("fast", "targets.kubernetes.load_gb_per_s=7") == pytest.approx(
        900 + gigabytes / 7, abs=10
    )


def test_a_pod_ends_only_when_its_last_answer_may_be_out(tmp_path: Path) -> None:
    folder = cluster_files.render(
        tmp_path / "bundle", "llama-tiny", "triton", "targets.triton.drain_timeout_s=700"
    )
    stop_s = json.loads((folder.parent / "launch.json").read_text())["targets"]["triton"]
    [pod] = cluster_files.served_pods(folder)
    wait_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] == stop_s["stop_timeout_s"] + wait_s > 700


def test_a_pod_asks_for_the_gpus_and_the_memory_of_its_node(one_node: Path) -> None:
    pod = cluster_files.served_pods(one_node)[0]
    asked = pod["containers"][0]["resources"]
    assert asked["limits"]["nvidia.com/gpu"] == asked["requests"]["nvidia.com/gpu"] == "4"
    assert asked["limits"]["memory"] == asked["requests"]["memory"]
    assert asked["limits"]["rdma/ib"] == "1"
    assert asked["claims"] == [{"name": "channel"}]
    [shm] = [row["emptyDir"] for row in pod["volumes"] if row["name"] == "shm"]
    assert shm == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_grace_machines_are_of_another_architecture(one_node: Path, tmp_path: Path) -> None:
    [pod, *_] = cluster_files.served_pods(one_node)
    assert pod["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-GB200",
        "kubernetes.io/arch": "arm64",
    }
    assert {row["key"] for row in pod["tolerations"]} == {"nvidia.com/gpu", "kubernetes.io/arch"}
    other = cluster_files.render(tmp_path / "bundle", "llama-3.3-70b-fp8-h100", "triton")
    [pod] = cluster_files.served_pods(other)
    assert pod["nodeSelector"]["kubernetes.io/arch"] == "amd64"


def test_what_the_user_selects_replaces_the_product(tmp_path: Path) -> None:
    own = "targets.kubernetes.node_selector={pool: gpus}"
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", "triton", own)
    [pod] = cluster_files.served_pods(folder)
    assert pod["nodeSelector"] == {"pool": "gpus", "kubernetes.io/arch": "amd64"}


def test_nothing_leaves_a_pod_but_questions_for_names(one_node: Path) -> None:
    for policy in cluster_files.of_kind(one_node, "NetworkPolicy"):
        outside = [row for row in policy["spec"]["egress"] if "namespaceSelector" in row["to"][0]]
        assert [{port["port"] for port in row["ports"]} for row in outside] == [{53}]
        for row in policy["spec"]["egress"]:
            assert row["to"]


def test_the_pods_of_a_group_may_speak_among_themselves(several_nodes: Path) -> None:
    [_, policy] = cluster_files.of_kind(several_nodes, "NetworkPolicy")
    among = {"podSelector": policy["spec"]["podSelector"]}
    assert {"to": [among]} in policy["spec"]["egress"]
    assert {"from": [among]} in policy["spec"]["ingress"]


def test_a_group_has_one_pod_for_each_node(several_nodes: Path) -> None:
    [group] = cluster_files.of_kind(several_nodes, "LeaderWorkerSet")
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 4
    leader, worker = cluster_files.pods(group)
    for pod in (leader, worker):
        [container] = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert container["command"] == ["bash", "/bundle/kubernetes/group.sh"]
        found = pod_files(config_maps(several_nodes), pod)
        for script in ("group.sh", "rank.sh"):
            data, mode = found[f"kubernetes/{script}"]
            assert data == (several_nodes / script).read_bytes()
            assert mode == 0o555
    assert "livenessProbe" not in worker["containers"][0]
    assert "topologySpreadConstraints" not in worker
    assert leader["volumes"] == worker["volumes"]


def test_clients_ask_the_first_pod_of_a_group(several_nodes: Path) -> None:
    index = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    found = cluster_files.of_kind(several_nodes, "Service")
    servers = [
        row for row in found if row["spec"]["selector"]["app.kubernetes.io/component"] == "server"
    ]
    assert servers and all(index.items() <= row["spec"]["selector"].items() for row in servers)


def test_services_find_the_pods_by_name_and_port(one_node: Path) -> None:
    [deployment, gateway] = cluster_files.of_kind(one_node, "Deployment")
    for service in cluster_files.of_kind(one_node, "Service"):
        selector = service["spec"]["selector"].items()
        [found] = [
            row
            for row in (deployment, gateway)
            if selector <= row["spec"]["template"]["metadata"]["labels"].items()
        ]
        [container] = found["spec"]["template"]["spec"]["containers"]
        ports = {row["name"] for row in container["ports"]}
        assert {row["targetPort"] for row in service["spec"]["ports"]} <= ports


def test_the_autoscaler_scales_what_is_there(one_node: Path, several_nodes: Path) -> None:
    for folder, kind in ((one_node, "Deployment"), (several_nodes, "LeaderWorkerSet")):
        [scaler] = cluster_files.of_kind(folder, "HorizontalPodAutoscaler")
        target = scaler["spec"]["scaleTargetRef"]
        found = cluster_files.of_kind(folder, kind)
        key = (target["apiVersion"], target["name"])
        assert key in [(row["apiVersion"], row["metadata"]["name"]) for row in found]


def test_keda_asks_for_a_server_by_the_same_load(tmp_path: Path) -> None:
    """By sums over servers, which it divides; the limits are those of the other autoscaler."""
    asked = {"max_replicas": 3, "waiting_requests": 5, "kv_cache_percent": 70}
    scalers = []
    for name, more in (("hpa", {}), ("keda", {"prometheus": "http://prometheus.example:9090"})):
        given = f"targets.kubernetes.autoscaling={json.dumps({**asked, **more})}"
        folder = cluster_files.render(tmp_path / name, "llama-tiny", "triton", given)
        [path] = (folder / "autoscaling").glob("autoscaler.yaml")
        scalers.append(yaml.safe_load(path.read_text()))
    hpa, keda = (row["spec"] for row in scalers)
    assert [row["kind"] for row in scalers] == ["HorizontalPodAutoscaler", "ScaledObject"]
    assert keda["scaleTargetRef"] == hpa["scaleTargetRef"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (1, 3)
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    wanted = []
    for row in hpa["metrics"]:
        metric, target = row["external"]["metric"], row["external"]["target"]
        [(label, value)] = metric["selector"]["matchLabels"].items()
        limit = target["averageValue"]
        number = int(limit[:-1]) / 1000 if limit.endswith("m") else int(limit)
        wanted.append((f'sum({metric["name"]}{{{label}="{value}"}})', number))
    found = [row["metadata"] for row in keda["triggers"]]
    assert [(row["query"], float(row["threshold"])) for row in found] == wanted
    assert {row["serverAddress"] for row in found} == {"http://prometheus.example:9090"}


def test_a_server_whose_health_needs_a_key_is_asked_by_its_port(tmp_path: Path) -> None:
    for folder, restricted in (("closed", "[health]"), ("open", "[statistics]")):
        own = f"targets.triton.restricted_apis={restricted}"
        found = cluster_files.render(tmp_path / folder, "llama-tiny", "triton", own)
        [pod] = cluster_files.served_pods(found)
        probe = pod["containers"][0]["readinessProbe"]
        assert ("tcpSocket" in probe) == (folder == "closed")


def test_the_number_of_servers_has_one_home(one_node: Path, tmp_path: Path) -> None:
    """The autoscaler's where there is one, which the next rollout must not undo."""
    assert "replicas" not in cluster_files.of_kind(one_node, "Deployment")[0]["spec"]
    fixed = "targets.kubernetes.replicas=3"
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", "triton", fixed)
    assert [row["spec"]["replicas"] for row in cluster_files.of_kind(folder, "Deployment")] == [3]


def verification(folder: Path, bundle: Path, models: Path) -> subprocess.CompletedProcess[str]:
    """What comes before the server of a pod, with the volumes of the pod in these folders."""
    [container] = cluster_files.served_pods(folder)[0]["initContainers"]
    [name] = {row["mountPath"] for row in container["volumeMounts"]} - {"/bundle"}
    *shell, script = container["command"]
    script = script.replace("/bundle", str(bundle)).replace(name, str(models))
    return subprocess.run([*shell, script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("changed", [None, "bundle", "model", "weights"])
@pytest.mark.parametrize("server", ["triton", "trtllm_serve"])
def test_a_pod_whose_files_are_not_those_that_were_rendered_ends(
    changed: str | None, server: str, make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    weights = shutil.copytree(make_miniature("llama-tiny"), tmp_path / "weights")
    rendered = cluster_files.render(tmp_path / "b", "llama-tiny", server, f"checkpoint={weights}")
    files = cluster_files.pod_files(
        cluster_files.config_maps(rendered), cluster_files.served_pods(rendered)[0]
    )
    for path, (data, _) in files.items():
        (tmp_path / "mounted" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / path).write_bytes(data)
    victims = {
        "bundle": tmp_path / "mounted" / server / "serve.sh",
        "model": weights / "config.json",
        "weights": next(weights.glob("*.safetensors")),
    }
    if changed:
        victims[changed].write_bytes(victims[changed].read_bytes() + b" ")
    done = verification(rendered, tmp_path / "mounted", weights)
    assert (done.returncode == 0) == (changed is None), done
    assert changed is None or f"{victims[changed].name}: FAILED" in done.stdout


@pytest.mark.parametrize("asked", [False, True])
def test_large_weights_are_compared_where_that_is_asked_for(
    asked: bool,
    make_miniature: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """To read them all takes minutes at every start."""
    monkeypatch.setattr(workload, "HASHED_BYTES", 10_000)
    own = f"targets.kubernetes.verify_weights={str(asked).lower()}"
    weights = f"checkpoint={make_miniature('llama-tiny')}"
    folder = cluster_files.render(tmp_path / "b", "llama-tiny", "triton", own, weights)
    listed = (folder / "model.sha256").read_text()
    assert "config.json" in listed
    assert ("safetensors" in listed) == asked


@by_table
def test_work_on_nodes_never_takes_the_only_pod(own: str, may_go: int, tmp_path: Path) -> None:
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", "triton", own)
    budgets = [row["spec"] for row in cluster_files.of_kind(folder, "PodDisruptionBudget")]
    assert {row["maxUnavailable"] for row in budgets} == {may_go}


@pytest.mark.parametrize("server", ["triton", "trtllm_serve"])
def test_the_port_of_the_api_is_not_open_to_a_whole_namespace(server: str, tmp_path: Path) -> None:
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", server)
    [policy] = cluster_files.of_kind(folder, "NetworkPolicy")
    ingress = policy["spec"]["ingress"]
    peers = [peer for rule in ingress if 8000 in ports_of(rule) for peer in rule["from"]]
    assert peers and all(peer["podSelector"]["matchLabels"] for peer in peers)


@pytest.mark.parametrize(("server", "port"), [("triton", 8002), ("trtllm_serve", 8000)])
def test_monitoring_reaches_the_metrics(server: str, port: int, tmp_path: Path) -> None:
    own = "targets.kubernetes.monitoring_pods={app: scraper}"
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", server, own)
    [policy] = cluster_files.of_kind(folder, "NetworkPolicy")
    [rule] = [row for row in policy["spec"]["ingress"] if "namespaceSelector" in row["from"][0]]
    [peer] = rule["from"]
    namespace = peer["namespaceSelector"]["matchLabels"]
    assert namespace == {"kubernetes.io/metadata.name": "monitoring"}
    assert peer.get("podSelector", {}).get("matchLabels", {"app": "scraper"}) == {"app": "scraper"}
    assert ports_of(rule) == [port]


def ports_of(rule: Mapping[str, Any]) -> list[int]:
    return [row["port"] for row in rule["ports"]]


def test_nobody_asks_for_life_before_the_start_is_over(one_node: Path, several_nodes: Path) -> None:
    for folder in (one_node, several_nodes):
        for pod in cluster_files.served_pods(folder):
            [container] = pod["containers"]
            if "/models/" in str(container["volumeMounts"]):
                assert ("livenessProbe" in container) == ("startupProbe" in container)


def walk_labels(node: Any) -> list[tuple[str, str]]:
    inner = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    found: list[tuple[str, str]] = []
    for key, value in inner:
        if key in ("labels", "matchLabels", "nodeSelector"):
            found += value.items()
        found += walk_labels(value)
    return found


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True)


@given(NAMES)
def test_every_name_makes_the_name_of_a_service(name: str) -> None:
    found = workload.object_name(name)
    assert SERVICE_NAME.fullmatch(found)
    assert len(found) <= workload.LONGEST
    assert workload.object_name(name) == found


TAILS = st.from_regex(r"[a-z0-9]{1,15}", fullmatch=True)


@given(TAILS, TAILS)
def test_long_names_that_begin_alike_stay_apart(one: str, two: str) -> None:
    long = {f"{'a' * workload.LONGEST}{tail}" for tail in (one, two)}
    assert len({workload.object_name(name) for name in long}) == len(long)


ODD_NAMES = ("1.5", "a..b--c", "x" * 63, "9" * 63, "on", f"{'a.' * 31}a", "null")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_make_valid_objects(name: str, tmp_path: Path) -> None:
    overrides = (*ALL_PARTS, "targets.kubernetes.kserve=true", f'name="{name}"')
    folder = cluster_files.render(tmp_path / "bundle", "llama-tiny", "triton", *overrides)
    for found in cluster_files.objects(folder):
        assert SERVICE_NAME.fullmatch(found["metadata"]["name"])
        assert len(found["metadata"]["name"]) <= 63
        for key, value in walk_labels(found):
            assert LABEL_KEY.fullmatch(key), key
            assert LABEL_VALUE.fullmatch(value) and len(value) <= 63, value


def test_kubectl_joins_the_folders(one_node: Path, kubectl: Path) -> None:
    def built(folder: Path) -> list[tuple[str, str]]:
        done = subprocess.run(
            [kubectl, "kustomize", folder], capture_output=True, text=True, check=True
        )
        found = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
        return [(row["kind"], row["metadata"]["name"]) for row in found]

    whole = built(one_node)
    assert len(set(whole)) == len(whole)
    assert {kind for kind, _ in whole} == {
        *("ConfigMap", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"),
        "HorizontalPodAutoscaler",
    }
    assert set(built(one_node / "base")) < set(whole)


def test_kubectl_keeps_every_value(one_node: Path, kubectl: Path) -> None:
    """What it reads and writes again is what the files say."""
    done = subprocess.run(
        [kubectl, "kustomize", one_node], capture_output=True, text=True, check=True
    )
    found = list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))
    order = [json.dumps(row, sort_keys=True) for row in cluster_files.objects(one_node)]
    assert sorted(json.dumps(row, sort_keys=True) for row in found) == sorted(order)


def test_two_renderings_are_alike(tmp_path: Path) -> None:
    digests = [
        pipeline.render(
            "llama-tiny",
            tmp_path / folder,
            ["targets.kubernetes.server=triton", f"images.triton=a.example/b:1@{DIGEST}"],
            more_targets=["kubernetes"],
        ).digest
        for folder in ("one", "two")
    ]
    assert digests[0] == digests[1]


def test_a_bundle_renders_again_from_its_own_deployment(one_node: Path, tmp_path: Path) -> None:
    bundle = one_node.parent
    pipeline.render(str(bundle / "deployment.yaml"), tmp_path / "again")
    for path in one_node.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(bundle)).read_bytes()


def test_the_autoscaler_looks_at_what_monitoring_records(tmp_path: Path) -> None:
    own = ("targets.kubernetes.server=triton", "targets.kubernetes.autoscaling={max_replicas: 2}")
    targets = ["kubernetes", "monitoring"]
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", own, more_targets=targets)
    [scaler] = cluster_files.of_kind(bundle.folder / "kubernetes", "HorizontalPodAutoscaler")
    asked = {row["external"]["metric"]["name"] for row in scaler["spec"]["metrics"]}
    recorded = {
        rule["record"]
        for path in (bundle.folder / "monitoring" / "rules").iterdir()
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    assert asked <= recorded


def test_keda_gets_the_load_of_all_servers_from_the_rendered_rules(tmp_path: Path) -> None:
    """10 and 6 waiting requests of two servers are 16: with a limit of 5, a fourth is asked for."""
    keda = "{max_replicas: 4, waiting_requests: 5, prometheus: 'http://prometheus.example:9090'}"
    own = ("targets.kubernetes.server=triton", f"targets.kubernetes.autoscaling={keda}")
    targets = ["kubernetes", "monitoring"]
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", own, more_targets=targets)
    scaler = yaml.safe_load((bundle.folder / "kubernetes/autoscaling/autoscaler.yaml").read_text())
    [waiting, _] = (row["metadata"] for row in scaler["spec"]["triggers"])
    series = "trtllm_model_requests_waiting"
    labels = 'deployment="llama-tiny"'
    test = {
        "interval": "15s",
        "input_series": [
            {"series": f'{series}{{{labels}, instance="{name}"}}', "values": f"{load}x8"}
            for name, load in (("a", 10), ("b", 6))
        ],
        "promql_expr_test": [
            {
                "expr": waiting["query"],
                "eval_time": "1m",
                "exp_samples": [{"labels": "{}", "value": 16}],
            }
        ],
    }
    rules = str(bundle.folder / "monitoring" / "rules" / "recording.yml")
    document = {"rule_files": [rules], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "keda.yml").write_text(yaml.safe_dump(document))
    command = [program("promtool"), "test", "rules", str(tmp_path / "keda.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
