"""The threats of a served model, one test each: what a rendered bundle does against it.

Each has its id and, in `ALSO`, the tests elsewhere that show the same on running servers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from builder import bundle, deployment, pipeline, render
from builder.errors import BadInput, DamagedBundle
from builder.facts import advisories, release
from tests.conftest import ROOT
from tests.kubernetes import policy
from tests.security import hostile
from tests.security.conftest import Render, run

THREATS = {
    "D2-01": "an old image with known vulnerabilities",
    "D2-02": "code by the API that loads models",
    "D2-03": "management APIs open to clients",
    "D2-04": "shared memory of others",
    "D2-05": "exposure to the network",
    "D2-06": "no authentication in trtllm-serve",
    "D2-07": "protocols that nobody uses",
    "D2-08": "exhaustion of memory",
    "D2-09": "pickles between processes",
    "D2-10": "spoofed handoffs of disaggregated serving",
    "D2-11": "remote code of a checkpoint",
    "D2-12": "injection into templates, shell, YAML and pbtxt",
    "D2-13": "texts that YAML takes for other types",
    "D2-14": "secrets in bundles, logs and arguments",
    "D2-15": "telemetry and egress",
    "D2-16": "privileges of containers and jobs",
    "D2-17": "path traversal by names",
    "D2-18": "a bundle that was tampered with",
    "D2-19": "requests to inner networks by media addresses",
}
ALSO = {
    "D2-01": ("tests/builder/test_vulnerability_policy.py", "tests/builder/test_advisories.py"),
    "D2-03": ("tests/launch/test_secure.py",),
    "D2-06": ("tests/launch/test_secure.py", "tests/kubernetes/test_gateway.py"),
    "D2-08": ("tests/model_repository/test_limits.py", "tests/model_repository/test_fuzz.py"),
    "D2-12": ("tests/security/test_injection.py", "tests/handoff/test_documents.py"),
    "D2-13": ("tests/security/test_injection.py",),
    "D2-14": ("tests/security/test_secrets.py", "tests/launch/test_secure.py"),
    "D2-16": ("tests/kubernetes/test_policy.py",),
    "D2-17": ("tests/security/test_paths.py",),
    "D2-18": ("tests/builder/test_verification.py", "tests/builder/test_signature.py"),
}
LOOPBACK = "127.0.0.1"
RESTRICTED = "shared-memory,model-repository,model-config,statistics,trace,logging"


@pytest.fixture
def folder(rendered: Render) -> Path:
    """A bundle of all targets."""
    return rendered("plain").folder


def triton(folder: Path, scratch: Path) -> list[str]:
    """The arguments that Triton gets."""
    argv: list[str] = run(folder / "triton/serve.sh", scratch)["argv"]
    return argv


def after(argv: list[str], flag: str) -> list[str]:
    """Every value of a flag."""
    return [argv[index + 1] for index, word in enumerate(argv) if word == flag]


def objects(folder: Path) -> Iterator[dict[str, Any]]:
    """Everything that kubectl would create."""
    for path in sorted((folder / "kubernetes").rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


def pods(folder: Path) -> list[dict[str, Any]]:
    rows = (row["spec"] for row in objects(folder) if row["kind"] in ("Deployment", "StatefulSet"))
    return [spec["template"]["spec"] for spec in rows]


def servers_policy(folder: Path) -> dict[str, Any]:
    """What may reach the servers, and what they may reach."""
    rows = (row["spec"] for row in objects(folder) if row["kind"] == "NetworkPolicy")
    label = "app.kubernetes.io/component"
    (found,) = (row for row in rows if row["podSelector"]["matchLabels"].get(label) == "server")
    return dict(found)


def service(folder: Path) -> dict[str, Any]:
    """The one service of Docker Compose."""
    document = yaml.safe_load((folder / "compose/compose.yaml").read_text())
    (found,) = document["services"].values()
    return dict(found)


def test_d2_01_images_below_the_minimum_are_refused_with_their_list() -> None:
    for tag, is_refused in {"25.06": True, "26.06": True, "26.07": False}.items():
        settings = [f"images.triton=registry.example/nvidia/tritonserver:{tag}-py3"]
        if not is_refused:
            pipeline.plan("llama-tiny", settings)
            continue
        with pytest.raises(BadInput) as caught:
            pipeline.plan("llama-tiny", settings)
        rows, said = advisories.open_for("triton", tag), str(caught.value)
        assert f"has {len(rows)} known vulnerabilit" in said
        assert all(row.cve in said for row in rows[:3])
        assert "all are in advisories/triton.yaml" in said


def test_d2_02_no_model_is_loaded_at_run_time(folder: Path, tmp_path: Path) -> None:
    argv = triton(folder, tmp_path)
    assert after(argv, "--model-control-mode") == ["none"]
    assert not [word for word in argv if "poll" in word or word == "--load-model"]
    for mount in service(folder)["volumes"]:
        assert mount["read_only"] is True
    for pod in pods(folder):
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_d2_03_management_needs_a_key_that_no_file_holds(folder: Path, tmp_path: Path) -> None:
    argv = triton(folder, tmp_path)
    for flag in ("--http-restricted-api", "--grpc-restricted-protocol"):
        (value,) = after(argv, flag)
        apis, _, key = value.partition(":api-key=")
        assert apis == RESTRICTED and key == (tmp_path / "key").read_text().strip()
    held = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not [data for data in held if key.encode() in data]


def test_d2_04_shared_memory_is_closed_and_nobodys_but_the_servers(
    folder: Path, tmp_path: Path
) -> None:
    (value,) = after(triton(folder, tmp_path), "--grpc-restricted-protocol")
    assert "shared-memory" in value
    assert pods(folder) and not [pod for pod in pods(folder) if pod.get("hostIPC")]
    assert service(folder)["ipc"] == "private"


def test_d2_05_servers_listen_on_loopback_but_in_a_container_behind_a_policy(
    folder: Path, tmp_path: Path
) -> None:
    argv = triton(folder, tmp_path)
    for protocol in ("http", "grpc", "metrics"):
        assert after(argv, f"--{protocol}-address") == [LOOPBACK]
    (tmp_path / "other").mkdir()
    serve = run(folder / "trtllm_serve/serve.sh", tmp_path / "other")["argv"]
    assert after(serve, "--host") == [LOOPBACK]
    assert all(port["host_ip"] == LOOPBACK for port in service(folder)["ports"])
    guard = servers_policy(folder)
    assert guard["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] and rule["ports"] for rule in guard["ingress"])


def test_d2_06_clients_show_a_certificate_where_the_server_cannot_ask_for_one(
    tmp_path: Path,
) -> None:
    document = hostile.request("plain", "plain")
    document["targets"] = {
        "trtllm_serve": {},
        "triton": {
            "key_file": "/run/key",
            "grpc_tls": {"certificate": "/c.pem", "key": "/k.pem", "client_ca": "/ca.pem"},
        },
        "kubernetes": {
            "server": "trtllm_serve",
            "gateway": {"image": "registry.example/haproxy:3.0", "tls_secret": "gateway"},
        },
    }
    (tmp_path / "d.json").write_text(json.dumps(document))
    found = pipeline.render(str(tmp_path / "d.json"), tmp_path / "b").folder
    held = [row for row in objects(found) if row["kind"] == "ConfigMap"]
    config = next(text for row in held for text in row["data"].values() if "frontend" in text)
    binds = [line for line in config.splitlines() if line.strip().startswith("bind")]
    doors = [line for line in binds if "ssl" in line]
    assert doors and all("verify required" in line for line in doors)
    assert len(binds) - len(doors) == 1  # the one for probes, which says up or down only
    text = (found / "triton/serve.sh").read_text()
    assert "--grpc-use-ssl-mutual true" in text


def test_d2_07_what_is_not_used_is_off(tmp_path: Path) -> None:
    settings = ["targets.triton.http=false", "targets.triton.metrics=false"]
    found = pipeline.render("llama-tiny", tmp_path / "b", settings)
    argv = triton(found.folder, tmp_path)
    for protocol in ("http", "metrics", "sagemaker", "vertex-ai"):
        assert after(argv, f"--allow-{protocol}") == ["false"]
    for flag in ("--exit-on-error", "--strict-readiness"):
        assert after(argv, flag) == ["true"]
    assert not [word for word in argv if word.startswith("--trace")]


def test_d2_08_queues_and_requests_have_bounds(folder: Path, tmp_path: Path) -> None:
    argv = triton(folder, tmp_path)
    (size,) = after(argv, "--grpc-max-response-pool-size")
    assert 0 < int(size) < 2**20
    (path,) = (folder / "triton/model_repository").rglob("model.yaml")
    limits = yaml.safe_load(path.read_text())["triton_config"]
    assert limits["max_requests"] and limits["engine_stall_timeout_s"]
    (most,) = after(argv, "--http-max-input-size")
    assert limits["max_prompt_bytes"] < int(most)
    assert yaml.safe_load((folder / "trtllm_serve/config.yaml").read_text())["max_batch_size"]


def test_d2_09_only_the_servers_own_ports_can_be_reached(folder: Path) -> None:
    """Between its processes the engine sends pickles: by ports that nobody else may reach."""
    entry = json.loads((folder / "launch.json").read_text())["targets"]["triton"]
    ports = set(entry["ports"].values())
    assert {port["target"] for port in service(folder)["ports"]} <= ports
    rules = servers_policy(folder)["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} <= ports
    assert advisories.is_refused("tensorrt_llm", "0.18.1")  # CVE-2025-23254


def test_d2_10_a_release_that_can_sign_handoffs_is_noticed() -> None:
    """No release whose options are known has a key for them: what is between the servers must be a
    network of their own. With an option for it, this test asks for it to be rendered."""
    paths = {path for name in release.known() for path in release.load(name).paths}
    assert not [path for path in paths if re.search(r"auth|hmac|shared_key", path)]


def test_d2_11_remote_code_runs_only_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    rows = [pipeline.plan(name) for name in deployment.preset_names()]
    assert not [row for row in rows if row.engine.options.get("trust_remote_code")]
    pattern = re.compile(r"trust[-_]remote[-_]code\W{1,4}(true|1)\b", re.I)
    for suffix in (".yaml", ".sh", ".sbatch", ".json"):
        for name, text in hostile.files(folder, suffix).items():
            if name != "manifest.json":  # names published options too, which are not taken
                assert not pattern.search(text), name
    asked = pipeline.render("llama-tiny", tmp_path / "b", ["engine_config.trust_remote_code=true"])
    config = yaml.safe_load((asked.folder / "trtllm_serve/config.yaml").read_text())
    assert config["trust_remote_code"] is True


def test_d2_12_values_are_never_templates(rendered: Render) -> None:
    value = hostile.HOSTILE["jinja"]
    held = rendered(value).folder
    options = yaml.safe_load((held / "trtllm_serve/config.yaml").read_text())
    assert f"draft {value}" in options["speculative_config"].values()
    assert not [
        1 for text in hostile.files(held, ".yaml", ".html", ".sh").values() if "[<class" in text
    ]


def test_d2_12_an_unknown_name_in_a_template_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render._environment().from_string("{{ nobody_gave_this }}").render()


def test_d2_12_templates_come_from_the_toolkit_only() -> None:
    for name in ("../pyproject.toml", "/etc/passwd", "..", "trtllm_serve/../../pyproject.toml"):
        with pytest.raises(jinja2.TemplateNotFound):
            render.text(name)


def test_d2_13_what_looks_like_another_type_stays_text(tmp_path: Path) -> None:
    for value in hostile.AMBIGUOUS:
        for reader in (hostile.yaml_1_1, hostile.yaml_1_2):
            assert reader(f"{render.key(value)}: {render.scalar(value)}") == [{value: value}]


def test_d2_14_a_key_is_in_one_file_and_one_argument(folder: Path, tmp_path: Path) -> None:
    """Triton takes it from its command line only; the model's environment has its file's name."""
    called = run(folder / "triton/serve.sh", tmp_path)
    key = (tmp_path / "key").read_text().strip()
    holders = [word for word in called["argv"] if key in word]
    assert len(holders) == 2  # once for each protocol
    assert not [name for name, value in called["environment"].items() if key in value]


@pytest.mark.parametrize("server", ["triton", "trtllm_serve"])
def test_d2_15_usage_data_is_off_and_no_host_outside_is_named(
    server: str, folder: Path, tmp_path: Path
) -> None:
    environment = run(folder / server / "serve.sh", tmp_path)["environment"]
    assert environment["TRTLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    for part in (server, "kubernetes", "compose", "slurm"):
        for name, text in hostile.files(folder / part, ".yaml", ".sh", ".sbatch", ".json").items():
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
            hosts = re.findall(r"https?://([\w.-]+)", "\n".join(lines))
            assert set(hosts) <= {LOOPBACK, "localhost"}, name
    variables = service(folder)["environment"]
    assert variables["HF_HUB_OFFLINE"] == variables["TRANSFORMERS_OFFLINE"] == "1"


def test_d2_16_containers_have_no_privileges_and_jobs_no_readers(folder: Path) -> None:
    assert pods(folder) and not [found for pod in pods(folder) if (found := policy.violations(pod))]
    for pod in pods(folder):
        assert pod["automountServiceAccountToken"] is False
    confined = service(folder)
    assert confined["user"] == "1000:1000" and confined["read_only"] is True
    assert confined["cap_drop"] == ["ALL"] and "no-new-privileges=true" in confined["security_opt"]
    for name, text in hostile.files(folder / "slurm", ".sbatch").items():
        assert "\numask 077\n" in text, name


def test_d2_17_no_name_of_a_folder_leads_out_of_it(tmp_path: Path) -> None:
    for path in ("name", "targets.triton.model_name"):
        with pytest.raises(BadInput):
            pipeline.render("llama-tiny", tmp_path / "b", [f"{path}=../x"])


def test_d2_18_one_flipped_byte_is_found(tmp_path: Path) -> None:
    found = pipeline.render("llama-tiny", tmp_path / "b").folder
    path = found / "triton/serve.sh"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedBundle):
        bundle.read(found)


def test_d2_19_a_server_cannot_ask_other_hosts(folder: Path) -> None:
    """Of all ports outside only those of names are open: what a request names is not fetched."""
    rules = servers_policy(folder)["egress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == {53}


def test_every_threat_has_its_test_and_names_the_others() -> None:
    tree = ast.parse(Path(__file__).read_text())
    found = [row.name for row in tree.body if isinstance(row, ast.FunctionDef)]
    ids = {f"D2-{name[8:10]}" for name in found if name.startswith("test_d2_")}
    assert ids == set(THREATS) and set(ALSO) <= ids
    for path in {each for paths in ALSO.values() for each in paths}:
        assert (ROOT / path).is_file(), path
