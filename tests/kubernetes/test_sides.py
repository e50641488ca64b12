"""Prefill and decode servers and their router: who finds whom, and what they answer together.

Each form is rendered once: servers on one node, and the published one of servers on two.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from builder import pipeline
from launch import engine
from tests.kubernetes import cluster_files
from tests.kubernetes.box import OUTSIDE, PATIENCE_S, Box, Volumes, boxed, need_what_a_box_needs
from tests.kubernetes.cluster_files import Object, of_kind
from tests.kubernetes.network import network

PUBLISHED = "deepseek-v3.2-nvfp4-gb200x32"
ONE_NODE: dict[str, Any] = {
    "checkpoint": "llama-tiny",
    "hardware": {"gpu": "gb200", "num_gpus": 1},
    "engine": {"release": "1.2.1"},
    "workload": {"isl": 512, "osl": 128, "concurrency": 16},
}
PREFILL = {
    **ONE_NODE,
    "name": "first",
    "role": "prefill",
    "targets": {"trtllm_serve": {"port": 8100}},
}
SERVERS = {"prefill": 2, "decode": 1}
# What runs the servers of a side.
RUNNERS = ("StatefulSet", "LeaderWorkerSet")
COMPONENT = "app.kubernetes.io/component"


def request(**kubernetes: Any) -> dict[str, Any]:
    own = {"prefill": {"deployment": PREFILL, "servers": SERVERS["prefill"]}, **kubernetes}
    targets = {"trtllm_serve": {}, "kubernetes": own}
    return {**ONE_NODE, "name": "chat", "role": "decode", "targets": targets}


@dataclass(frozen=True, slots=True)
class Sides:
    """A rendered service, and what runs the servers of each side."""

    folder: Path
    runners: Mapping[str, Object]

    @property
    def router(self) -> Object:
        [found] = of_kind(self.folder, "Deployment")
        [pod] = cluster_files.pods(found)
        return pod

    @property
    def router_options(self) -> dict[str, Any]:
        path = self.folder.parent / "router" / "disaggregated.yaml"
        found: dict[str, Any] = yaml.safe_load(path.read_text())
        return found

    def asked(self, side: str) -> tuple[str, int]:
        """Where the router asks the servers of a side, as host and port."""
        given = self.router_options
        named = {"prefill": "context_servers", "decode": "generation_servers"}[side]
        assert given[named]["num_instances"] == 1
        [url] = given[named]["urls"]
        host, port = url.split(":")
        return host, int(port)


@pytest.fixture(scope="module", params=RUNNERS)
def sides(request_file: Path, request: pytest.FixtureRequest) -> Sides:
    kind: str = request.param
    named = {"StatefulSet": str(request_file), "LeaderWorkerSet": PUBLISHED}
    folder = request_file.parent / kind
    pipeline.render(named[kind], folder)
    runners = of_kind(folder / "kubernetes", kind)
    by_side = {row["metadata"]["labels"][COMPONENT]: row for row in runners}
    return Sides(folder / "kubernetes", by_side)


@pytest.fixture(scope="module")
def request_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sides") / "request.yaml"
    path.write_text(yaml.safe_dump(request(compute_domain=True, topology_key="rack")))
    return path


@pytest.mark.parametrize("side", SERVERS)
def test_the_router_asks_a_side_by_one_service_that_has_only_pods_that_are_ready(
    side: str, sides: Sides
) -> None:
    """Were its servers listed one by one, it would ask one that is away as well."""
    services = {row["metadata"]["name"]: row["spec"] for row in of_kind(sides.folder, "Service")}
    host, port = sides.asked(side)
    found = services[host]
    assert not found.get("publishNotReadyAddresses") and "clusterIP" not in found
    assert found["selector"][COMPONENT] == side
    [pod, *_] = cluster_files.pods(sides.runners[side])
    [container] = pod["containers"]
    open_ports = {row["name"]: row["containerPort"] for row in container["ports"]}
    [exposed] = found["ports"]
    assert (exposed["port"], open_ports[exposed["targetPort"]]) == (port, port)


class Answers(BaseHTTPRequestHandler):
    """Healthy by its own words; it generates as long as its server says so."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if getattr(self.server, "generates", False) else 500)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
@pytest.mark.parametrize("generates", [True, False])
def test_a_server_is_ready_when_it_generates(probe: str, generates: bool, sides: Sides) -> None:
    """Not when it says that it is healthy."""
    pod = next(cluster_files.pods(sides.runners["decode"]))
    _, *arguments = pod["containers"][0][probe]["exec"]["command"]
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        server.generates = generates  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        here = [word.replace(":8000/", f":{server.server_port}/") for word in arguments]
        asked = subprocess.run([sys.executable, *here], capture_output=True, check=False)
        server.shutdown()
        thread.join()
    assert (asked.returncode == 0) == generates


def test_clients_find_the_router_alone(sides: Sides) -> None:
    [port] = sides.router["containers"][0]["ports"]
    given = sides.router_options
    assert port["containerPort"] == given["port"]
    own = {
        row["metadata"]["name"]: row["spec"]["selector"][COMPONENT]
        for row in of_kind(sides.folder, "Service")
    }
    [deployment] = of_kind(sides.folder, "Deployment")
    name = deployment["metadata"]["labels"]["app.kubernetes.io/instance"]
    assert own[name] == own[f"{name}-pods"] == "router"
    assert sorted(own.values()).count("router") == 2


def reachable(sides: Sides, source: str, target: str) -> set[int | None]:
    """The ports on which policies let one component reach another; `None` stands for all."""
    policies = {
        row["spec"]["podSelector"]["matchLabels"][COMPONENT]: row["spec"]
        for row in of_kind(sides.folder, "NetworkPolicy")
    }

    def allowed(rules: list[Any], peers: str, other: str) -> set[int | None]:
        return {
            row["port"]
            for rule in rules
            for peer in rule[peers]
            if peer.get("podSelector", {}).get("matchLabels", {}).get(COMPONENT) == other
            for row in rule.get("ports", [{"port": None}])
        }

    out = allowed(policies[source]["egress"], "to", target)
    return out & allowed(policies[target]["ingress"], "from", source)


def test_policies_let_pass_what_the_service_needs_and_no_more(sides: Sides) -> None:
    ports = {side: {sides.asked(side)[1]} for side in SERVERS}
    for side, other in (("prefill", "decode"), ("decode", "prefill"), ("decode", "decode")):
        assert None in reachable(sides, side, other)
    for side in SERVERS:
        assert reachable(sides, "router", side) == ports[side]
        assert reachable(sides, side, "router") == set()
    clients = [
        row["spec"]["podSelector"]["matchLabels"][COMPONENT]
        for row in of_kind(sides.folder, "NetworkPolicy")
        if "client-of" in str(row["spec"]["ingress"])
    ]
    assert clients == ["router"]


def test_pods_have_the_files_of_their_side_byte_for_byte(sides: Sides) -> None:
    maps, bundle = cluster_files.config_maps(sides.folder), sides.folder.parent
    pods = {side: next(cluster_files.pods(row)) for side, row in sides.runners.items()}
    for side, pod in {**pods, "router": sides.router}.items():
        found = cluster_files.pod_files(maps, pod)
        assert found and {path: data for path, (data, _) in found.items()} == {
            path: (bundle / path).read_bytes() for path in found
        }
        options = [path for path in found if path.endswith("trtllm_serve/config.yaml")]
        folder = {"prefill": ["prefill/trtllm_serve"], "decode": ["trtllm_serve"]}.get(side, [])
        assert options == [f"{path}/config.yaml" for path in folder]


def test_all_servers_share_one_domain_of_nvlink(sides: Sides) -> None:
    [domain] = of_kind(sides.folder, "ComputeDomain")
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    pods = [pod for row in sides.runners.values() for pod in cluster_files.pods(row)]
    claims = [row["resourceClaimTemplateName"] for pod in pods for row in pod["resourceClaims"]]
    assert claims == [template] * len(pods)
    assert "resourceClaims" not in sides.router


def test_the_router_takes_no_gpu_from_a_node_that_has_the_driver(sides: Sides) -> None:
    [container] = sides.router["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    variables = {row["name"]: row["value"] for row in container["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "none"
    [server, *_] = cluster_files.pods(sides.runners["decode"])
    assert sides.router["nodeSelector"] == server["nodeSelector"]


def test_the_router_waits_as_long_as_its_servers_may_take(sides: Sides) -> None:
    def limit_s(pod: Object) -> int:
        probe = pod["containers"][0]["startupProbe"]
        return int(probe["failureThreshold"] * probe["periodSeconds"])

    servers = [next(cluster_files.pods(row)) for row in sides.runners.values()]
    command = sides.router["containers"][0]["command"]
    waits_s = int(command[command.index("--server_start_timeout") + 1])
    assert limit_s(sides.router) >= waits_s > max(map(limit_s, servers))


def test_work_on_nodes_takes_one_server_of_several_at_a_time(sides: Sides) -> None:
    """All pods of groups count, so that a second server waits for every pod of the first."""
    budgets = {
        row["metadata"]["labels"][COMPONENT]: row["spec"]
        for row in of_kind(sides.folder, "PodDisruptionBudget")
    }
    assert budgets["router"]["maxUnavailable"] == 1
    for side, runner in sides.runners.items():
        assert budgets[side]["maxUnavailable"] == (runner["spec"]["replicas"] > 1)
        for template in templates(runner):
            labels = template["metadata"]["labels"]
            assert budgets[side]["selector"]["matchLabels"].items() <= labels.items()


def templates(runner: Object) -> list[Object]:
    group = runner["spec"].get("leaderWorkerTemplate")
    if group is None:
        return [runner["spec"]["template"]]
    return [group["leaderTemplate"], group["workerTemplate"]]


def test_both_sides_are_near_each_other_where_the_deployment_says_so(request_file: Path) -> None:
    """Not one domain for each server: what they exchange stays inside."""
    folder = request_file.parent / "near"
    pipeline.render(PUBLISHED, folder, ["targets.kubernetes.topology_key=nvidia.com/gpu.clique"])
    for row in of_kind(folder / "kubernetes", "LeaderWorkerSet"):
        assert "annotations" not in row["metadata"]
        for pod in cluster_files.pods(row):
            near = pod["affinity"]["podAffinity"]
            [term] = near["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["topologyKey"] == "nvidia.com/gpu.clique"
            chosen = {
                rule["key"]: rule["values"] for rule in term["labelSelector"]["matchExpressions"]
            }
            assert chosen[COMPONENT] == ["prefill", "decode"]


def test_a_gateway_stands_before_the_router(request_file: Path) -> None:
    folder = request_file.parent / "gate"
    gate = "targets.kubernetes.gateway={image: a.example/b:1, tls_secret: door}"
    sides = Sides(pipeline.render(PUBLISHED, folder, [gate]).folder / "kubernetes", {})
    assert reachable(sides, "gateway", "router") == {8000}
    assert reachable(sides, "gateway", "decode") == set()


def test_a_picker_of_servers_stands_between_the_router_and_each_side(request_file: Path) -> None:
    """llm-d's router, by the names that its chart gives: it alone reaches servers, one of each
    group, and the router reaches nothing but it."""
    folder = request_file.parent / "picker"
    asked = ["targets.kubernetes.endpoint_picker=true"]
    found = pipeline.render(PUBLISHED, folder, asked).folder / "kubernetes"
    sides = Sides(
        found, {row["metadata"]["name"]: row for row in of_kind(found / "base", "Service")}
    )
    policies = {
        row["metadata"]["name"]: row["spec"] for row in of_kind(found / "shared", "NetworkPolicy")
    }
    name = "deepseek-v3-2-nvfp4-gb200x32"
    out = [row for row in policies[f"{name}-router"]["egress"] if "podSelector" in row["to"][0]]
    for side, rule in zip(SERVERS, out, strict=True):
        values = yaml.safe_load((found / f"llm-d/{side}.yaml").read_text())["router"]
        assert values["inferencePool"] == {"create": False}
        servers = values["modelServers"]
        assert (servers["type"], servers["targetPorts"]) == ("trtllm-serve", [{"number": 8000}])
        pods = sides.runners[f"{name}-{side}-pods"]["spec"]["selector"]
        assert servers["matchLabels"] == pods
        epp = f"{name}-{side}-epp"
        assert sides.asked(side) == (epp, 8081)
        chosen = [{"podSelector": {"matchLabels": {"llm-d-router-standalone": epp}}}]
        assert rule == {"to": chosen, "ports": [{"protocol": "TCP", "port": 8081}]}
        assert policies[f"{name}-{side}"]["ingress"][0]["from"] == chosen


@pytest.fixture(scope="module")
def running(request_file: Path, one_layer: Path) -> Iterator[dict[str, Box]]:
    """The pods of one server of each side and of the router, with the stand-in for the engine.

    Each has a network of its own, and knows the others by the names of their Services.
    """
    need_what_a_box_needs()
    folder = request_file.parent / "running"
    one = {"deployment": PREFILL, "servers": 1}
    (folder.with_suffix(".yaml")).write_text(yaml.safe_dump(request(prefill=one)))
    rendered = pipeline.render(str(folder.with_suffix(".yaml")), folder).folder / "kubernetes"
    runners = [*of_kind(rendered, "StatefulSet"), *of_kind(rendered, "Deployment")]
    pods = {row["metadata"]["labels"][COMPONENT]: next(cluster_files.pods(row)) for row in runners}
    volumes = Volumes(cluster_files.config_maps(rendered), {"model": one_layer}, {})
    with ExitStack() as stack:
        outside = Path(stack.enter_context(TemporaryDirectory(dir=OUTSIDE)))
        programs = engine.path_entries("reference", outside / "programs", Path)
        joined = stack.enter_context(network(outside))
        found = {}
        for side, pod in pods.items():
            host = stack.enter_context(joined.joined(f"chat-{side}", "default"))
            found[side] = stack.enter_context(boxed(pod, volumes, programs, host))
        yield found


def test_the_pods_answer_as_one_server(running: Mapping[str, Box]) -> None:
    """The router is ready when its servers are, and both sides do their part."""
    running["router"].wait_for("readinessProbe")
    for side in SERVERS:
        assert running[side].passes("readinessProbe"), running[side].log
    greedy = {"temperature": 0, "ignore_eos": True}
    asked = {**greedy, "model": "llama-tiny", "prompt": "Hello", "max_tokens": 4}
    answer = running["router"].ask("/v1/completions", "http", json.dumps(asked))
    assert answer is not None, running["router"].log
    assert all("POST /v1/completions" in running[side].log for side in SERVERS)
    alone = running["prefill"].ask("/v1/completions", "http", json.dumps(asked))
    assert alone is not None
    one, two = json.loads(answer), json.loads(alone)
    assert one["usage"]["completion_tokens"] == 4
    assert one["choices"][0]["text"] == two["choices"][0]["text"]


def test_the_router_ends_in_order(running: Mapping[str, Box]) -> None:
    router = running["router"]
    router.send(signal.SIGTERM)
    assert router.process.wait(PATIENCE_S) == 0, router.log
    assert "Read-only file system" not in router.log
