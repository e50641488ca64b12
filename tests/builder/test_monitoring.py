"""Target `monitoring`: right rules for every server and release, each proved by its own test."""

from __future__ import annotations

import ast
import copy
import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from builder import deployment, pipeline
from builder.bundle import Bundle
from builder.errors import BadInput
from builder.facts import engines, release, servers
from builder.facts import published_results as results
from builder.observability import alerts, metrics, signals
from tests.conftest import ROOT, of_release
from tests.monitoring.programs import program
from tests.tables import by_table

SLO = "slo={ttft_ms: 700, itl_ms: 30}"
TLS = "targets.triton.grpc_tls={certificate: /tls/server.pem, key: /tls/server.key}"
SERVERS = [name for name in servers.names() if engines.default().name in servers.load(name).engines]
# Words of PromQL that are followed by no bracket.
KEYWORDS = {"by", "bool", "and", "or", "unless", "on", "ignoring", "without", "Inf", "NaN"}

Render = Callable[..., Bundle]


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    @functools.cache
    def make(preset: str = "llama-tiny", *settings: str) -> Bundle:
        folder = tmp_path_factory.mktemp("bundle") / "b"
        given = [item for item in settings if item]
        return pipeline.render(preset, folder, given, more_targets=["monitoring"])

    return make


def document(bundle: Bundle, path: str) -> Any:
    return yaml.safe_load((bundle.folder / "monitoring" / path).read_text())


def rules(bundle: Bundle, kind: str) -> list[dict[str, Any]]:
    [group] = document(bundle, f"rules/{kind}.yml")["groups"]
    return list(group["rules"])


def names(bundle: Bundle) -> set[str]:
    return {rule["alert"] for rule in rules(bundle, "alerts")}


def assert_accepted(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Rules with their tests that promtool has passed, apart from the name of the deployment.
PASSED: set[str] = set()


def assert_promtool_accepts(bundle: Bundle, every: int = 1) -> None:
    """The configuration and all rules, and the tests of every nth rule that no bundle has had."""
    folder, promtool = bundle.folder / "monitoring", program("promtool")
    config = document(bundle, "prometheus.yml")
    for job in config["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None):  # Debian builds Prometheus without it
            job["static_configs"] = [{"targets": ["10.0.0.1:8000"]}]
    (folder / "checked.yml").write_text(yaml.dump(config))
    assert_accepted([promtool, "check", "config", "checked.yml"], folder)
    for kind, key in (("recording", "record"), ("alerts", "alert")):
        tests, rows = document(bundle, f"tests/{kind}.yml"), rules(bundle, kind)
        known, fresh, texts = [row[key] for row in rows], [], set()
        for rule in rows[::every]:
            own = [test for test in tests["tests"] if rule_of(test["name"], known) == rule[key]]
            assert own, rule[key]
            text = json.dumps([rule, own]).replace(bundle.launch["name"], "")
            fresh += [] if text in PASSED else own
            texts.add(text)
        if fresh:
            text = yaml.dump({**tests, "tests": fresh}, Dumper=yaml.CSafeDumper)
            (folder / "tests" / "fresh.yml").write_text(text)
            # Without the collector of garbage, which takes a third of the time.
            command = ["env", "GOGC=off", promtool, "test", "rules", "tests/fresh.yml"]
            assert_accepted(command, folder)
            PASSED.update(texts)


def rule_of(test: str, known: list[str]) -> str:
    """The rule that a test is named after."""
    return max((name for name in known if test.startswith(name)), key=len)


def shape(preset: str) -> tuple[object, ...]:
    """What the rules of a preset may differ in from those of another one."""
    data = deployment.read(preset).data
    speculation = data.get("engine_config", {}).get("speculative_config")
    own = (data["engine"].get("name"), data.get("role"), data.get("instances"))
    return *sorted(data["targets"]), *own, "draft" in data, speculation is None


@pytest.mark.parametrize(
    "preset", {shape(name): name for name in deployment.preset_names()}.values()
)
def test_promtool_accepts_and_tests_the_rules_of_each_shape(preset: str, render: Render) -> None:
    assert_promtool_accepts(render(preset, SLO))


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", [release.known()[0], release.known()[-1]])
def test_promtool_accepts_and_tests_the_rules_of_the_oldest_and_newest_release(
    name: str, server: str, render: Render
) -> None:
    given = (SLO, *of_release(name), f"targets.monitoring.server={server}", TLS)
    assert_promtool_accepts(render("llama-tiny", *given, "targets.triton.http=false"))


@pytest.mark.parametrize(
    "name", release.known(engines.load("vllm"))[:: len(release.known(engines.load("vllm"))) - 1]
)
def test_promtool_accepts_the_rules_of_the_oldest_and_newest_vllm(
    name: str, render: Render
) -> None:
    engine = f"engine={{name: vllm, release: {name}}}"
    bundle = render("llama-tiny", SLO, engine, "targets={vllm_serve: {}, monitoring: {}}")
    assert_promtool_accepts(bundle)
    assert "vllm:time_to_first_token_seconds" in str(rules(bundle, "recording"))


def test_a_rehearsals_rules_are_tested_as_well(render: Render) -> None:
    assert_promtool_accepts(render("llama-tiny", SLO, "targets.monitoring.speed=60"), every=4)


def test_amtool_accepts_the_example_for_alertmanager(render: Render) -> None:
    config = render().folder / "monitoring/alertmanager.yml"
    assert_accepted([program("amtool"), "check-config", str(config)])


def test_the_blackbox_exporter_accepts_its_modules(render: Render) -> None:
    for extra in ("", "targets.triton.http=false"):
        config = render("llama-tiny", TLS, extra).folder / "monitoring/blackbox.yml"
        exporter = program("prometheus-blackbox-exporter")
        assert_accepted([exporter, f"--config.file={config}", "--config.check"])


def test_every_alert_has_a_test_that_it_fires_and_one_that_it_does_not(render: Render) -> None:
    bundle = render("llama-tiny", SLO)
    tests = {test["name"] for test in document(bundle, "tests/alerts.yml")["tests"]}
    for name in names(bundle):
        assert {f"{name} stays quiet", f"{name} fires and ends"} <= tests
    recorded = {test["name"] for test in document(bundle, "tests/recording.yml")["tests"]}
    assert recorded == {rule["record"] for rule in rules(bundle, "recording")}


def test_a_test_of_an_alert_notices_another_threshold(render: Render, tmp_path: Path) -> None:
    """In both directions, by as little as a thousandth."""
    bundle, alert = render("llama-tiny", SLO), "RequestsFail"
    shutil.copytree(bundle.folder / "monitoring/rules", tmp_path / "rules")
    tests = document(bundle, "tests/alerts.yml")
    own = [test for test in tests["tests"] if test["name"].startswith(f"{alert} ")]
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({**tests, "rule_files": ["rules/*.yml"], "tests": own})
    )
    path = tmp_path / "rules/alerts.yml"
    sound = yaml.safe_load(path.read_text())
    for factor, fails in ((1, False), (0.999, True), (1.001, True)):
        changed = copy.deepcopy(sound)
        [rule] = [row for row in changed["groups"][0]["rules"] if row["alert"] == alert]
        rule["expr"] = rule["expr"].replace("0.05", str(0.05 * factor))
        path.write_text(yaml.safe_dump(changed))
        command = [program("promtool"), "test", "rules", "tests.yml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode != 0, alert in done.stdout + done.stderr) == (fails, fails)


@pytest.mark.parametrize("name", release.known())
@pytest.mark.parametrize("server", SERVERS)
def test_no_expression_asks_for_what_the_release_does_not_export(
    server: str, name: str, render: Render
) -> None:
    bundle = render("llama-tiny", SLO, *of_release(name), f"targets.monitoring.server={server}")
    jobs = {job["job_name"] for job in document(bundle, "prometheus.yml")["scrape_configs"]}
    exported = metrics.of_jobs(jobs)
    if "server" in jobs:
        exported |= metrics.of_server(server, release.load(name))
    samples = {sample for family in exported.values() for sample in family.samples}
    records = {rule["record"] for rule in rules(bundle, "recording")}
    for rule in rules(bundle, "recording"):
        assert series(rule["expr"]) <= samples, rule["record"]
    for rule in rules(bundle, "alerts"):
        assert series(rule["expr"]) <= records, rule["alert"]
    for expression in panel_expressions(bundle):
        assert series(expression) <= records


def series(expression: str) -> set[str]:
    """The series that an expression of PromQL asks for."""
    bare = re.sub(r'"(\\.|[^"\\])*"', "", expression)
    bare = re.sub(r"\b(by|without|on|ignoring) *\([^)]*\)|\{[^}]*\}|\[[^]]*\]", " ", bare)
    words = re.findall(r"(?<![\w:.])([A-Za-z_:][\w:]*)(?! *\(|[\w:])", bare)
    return {word for word in words if word not in KEYWORDS}


def panel_expressions(bundle: Bundle) -> Iterator[str]:
    for path in (bundle.folder / "monitoring/grafana").iterdir():
        for panel in json.loads(path.read_text())["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()))


@pytest.mark.parametrize("server", SERVERS)
def test_what_is_left_out_is_told_with_its_reason(server: str, render: Render) -> None:
    bundle = render("llama-tiny", f"targets.monitoring.server={server}")
    text = (bundle.folder / "monitoring/README.md").read_text()
    told = dict(re.findall(r"^\| (\w+) \| (.+) \|$", text.partition("## Left out")[2], re.M))
    assert told.keys() - {"alert"} == {row.name for row in alerts.all_of()} - names(bundle)
    assert told["TtftBurnsFast"] == "slo.ttft_ms is not set"
    assert told["CertificateExpires"] == "the server has no TLS"


def test_without_streams_nobody_sees_progress(render: Render) -> None:
    assert "NoProgress" in names(render())
    assert "NoProgress" not in names(render("llama-tiny", "targets.triton.decoupled=false"))


def test_an_old_server_has_fewer_alerts_and_says_why(render: Render) -> None:
    given = ("targets.monitoring.server=trtllm_serve", SLO)
    old, new = (
        render("llama-tiny", *of_release(name), *given) for name in ("1.2.1", "main-00043967")
    )
    assert names(old) < names(new)
    assert {"QueueGrows", "KvCacheNearlyFull", "NoProgress", "RequestsFail"} <= names(new)
    text = (old.folder / "monitoring/README.md").read_text()
    assert "| QueueGrows | trtllm_serve of release 1.2.1 exports no num_requests_waiting |" in text


def test_a_release_without_metrics_is_watched_from_outside(render: Render) -> None:
    settings = [*of_release("1.0.0"), "targets.monitoring.server=trtllm_serve"]
    bundle = render("llama-tiny", *settings)
    jobs = {job["job_name"] for job in document(bundle, "prometheus.yml")["scrape_configs"]}
    assert jobs == {"ready", "gpu"}
    assert {"ServerNotReady", "RestartLoop", "GpuError"} <= names(bundle)


def test_watching_makes_the_engine_measure(render: Render) -> None:
    bundle = render()
    config = yaml.safe_load((bundle.folder / "trtllm_serve/config.yaml").read_text())
    assert config["return_perf_metrics"] is config["enable_iter_perf_stats"] is True
    refused = render("llama-tiny", "engine_config.enable_iter_perf_stats=false")
    assert names(bundle) - names(refused) == {"KvCacheNearlyFull"}
    text = (refused.folder / "monitoring/README.md").read_text()
    assert "| KvCacheNearlyFull | enable_iter_perf_stats is not set |" in text


# Thresholds


def threshold(bundle: Bundle, alert: str) -> float:
    [rule] = [rule for rule in rules(bundle, "alerts") if rule["alert"] == alert]
    return float(rule["expr"].rpartition(" ")[2])


@by_table
def test_thresholds_come_from_the_deployment(
    alert: str, settings: list[str], expected: float, render: Render
) -> None:
    assert threshold(render("llama-tiny", *settings), alert) == expected


def test_the_limit_of_requests_is_the_models_own(render: Render) -> None:
    bundle = render("llama-tiny", "targets.triton.max_requests=77")
    [load] = [row for row in rules(bundle, "recording") if row["record"] == "instance:llm_load"]
    assert load["expr"].endswith("/ 77")


def test_the_expected_acceptance_is_the_published_one() -> None:
    file = results.RESULTS / "trtllm-blog-01.yaml"
    lengths = re.findall(r"mtp_draft_tokens: (\d+), accepted_length: ([\d.]+)", file.read_text())
    published = {int(depth): float(length) for depth, length in lengths if depth != "0"}
    assert dict(alerts.accepted_length()) == published


@pytest.mark.parametrize(
    ("server", "itl_ms", "bound"),
    [("triton", 20, "0\\\\.02"), ("trtllm_serve", 20, "0\\\\.025"), ("triton", 1000, "1(\\\\.0)?")],
)
def test_a_latency_is_counted_at_a_bound_of_the_servers_histogram(
    server: str, itl_ms: float, bound: str, render: Render
) -> None:
    given = (f"slo={{itl_ms: {itl_ms}}}", f"targets.monitoring.server={server}")
    found = rules(render("llama-tiny", *given), "recording")
    [rule] = [row for row in found if row["record"] == "deployment:llm_itl_slow:5m"]
    assert f'le=~"{bound}"' in rule["expr"]


def test_a_latency_beyond_every_bound_has_no_alert(render: Render) -> None:
    bundle = render("llama-tiny", "slo={ttft_ms: 4000000}")
    assert "TtftBurnsFast" not in names(bundle)
    text = (bundle.folder / "monitoring/README.md").read_text()
    assert "no bucket of the server's histogram reaches 4e+06 ms" in text


def objectives(asked: dict[str, float], availability: float | None = None) -> list[Any]:
    given = {**deployment.read("llama-tiny").data, "targets": {"triton": {}}, "slo": asked}
    found = alerts.objectives(deployment.Deployment.of(given), availability)
    return [(row.kind, row.share, row.limit_ms, row.evidence) for row in found]


def test_objectives_are_those_of_the_deployment() -> None:
    assumed = ("availability", 0.99, None, "assumed")
    assert objectives({}) == [assumed]
    assert objectives({"ttft_ms": 700}) == [assumed, ("ttft", 0.95, 700, "deployment")]
    assert objectives({"itl_ms": 30}) == [assumed, ("itl", 0.95, 30, "deployment")]
    assert objectives({}, 0.999) == [("availability", 0.999, None, "deployment")]


# Data and code


def test_the_data_knows_the_models_own_metrics() -> None:
    path = ROOT / "model_repository/tensorrt_llm/1/trtllm_model/metrics.py"
    own = constants(path)
    families = {
        name.removeprefix(own["PREFIX"]): row
        for name, row in metrics.of_server("triton", release.load("1.2.1")).items()
        if name.startswith(own["PREFIX"])
    }
    kinds = {
        **dict.fromkeys(own["HISTOGRAMS"], "histogram"),
        **dict.fromkeys([*own["COUNTERS"], "requests_total"], "counter"),
        **dict.fromkeys([*own["GAUGES"], "engine_info"], "gauge"),
    }
    assert {name: row.kind for name, row in families.items()} == kinds
    for name, (bounds, _) in own["HISTOGRAMS"].items():
        assert families[name].bounds == tuple(bounds)


def constants(path: Path) -> dict[str, Any]:
    """The constants of a module that only Triton can import."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and target.id.isupper() and target.id != "SECOND":
            code = ast.unparse(node.value)  # type: ignore[attr-defined]
            found[target.id] = eval(code, {"__builtins__": {}, "Literal": Mapping}, dict(found))
    return found


def test_every_family_of_trtllm_serve_is_one_of_some_release() -> None:
    known = {name for row in release.known() for name in release.load(row).metric_names}
    own = yaml.safe_load((metrics.METRICS / "trtllm_serve.yaml").read_text())["families"]
    assert set(own) <= known
    assert not metrics.of_server("trtllm_serve", release.load("1.0.0"))
    assert len(metrics.of_server("trtllm_serve", release.load("1.1.0"))) == 5


def test_every_row_of_the_data_is_used() -> None:
    """Alerts and panels ask for signals that exist, and every signal is asked for."""
    panels = yaml.safe_load((ROOT / "builder/data/dashboards.yaml").read_text())
    shown = {
        name
        for board in panels["dashboards"]
        for row in board["rows"]
        for panel in row["panels"]
        for name in panel["signals"]
    }
    asked = {name for alert in alerts.all_of() for name in alert.references}
    assert shown | asked == set(signals.by_reference())


@pytest.mark.parametrize("path", sorted(metrics.METRICS.glob("*.yaml")), ids=lambda row: row.stem)
def test_every_metric_has_a_source(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    lists = (
        [data["families"]] if "families" in data else [j["families"] for j in data["jobs"].values()]
    )
    assert {row["source"] for rows in lists for row in rows.values()} <= set(data["sources"])


def test_every_alert_has_causes_with_commands_and_an_anchor_of_its_own() -> None:
    rows = alerts.all_of()
    assert len({row.anchor for row in rows}) == len(rows)
    for row in rows:
        assert re.fullmatch(r"alert(-[a-z0-9]+)+", row.anchor)
        assert row.causes
        assert all(cause.commands for cause in row.causes)


def test_every_alert_links_to_its_place_in_the_runbook(render: Render) -> None:
    bundle = render("llama-tiny", SLO, "targets.monitoring.runbook_url=https://wiki.example/r")
    anchors = {row.name: row.anchor for row in alerts.all_of()}
    for rule in rules(bundle, "alerts"):
        expected = f"https://wiki.example/r#{anchors[rule['alert']]}"
        assert rule["annotations"]["runbook_url"] == expected
        assert rule["labels"]["deployment"] == "llama-tiny"
        assert rule["labels"]["severity"] in ("critical", "warning")


# Dashboards


@pytest.mark.parametrize("server", SERVERS)
def test_dashboards_hold_nothing_that_grafanas_model_does_not_know(
    server: str, render: Render
) -> None:
    """Its model drops unknown keys, so that whatever it gives back is known."""
    folder = render("llama-tiny", SLO, f"targets.monitoring.server={server}").folder
    for path in (folder / "monitoring/grafana").iterdir():
        ours = json.loads(path.read_text())
        known = json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))
        assert list(differences(ours, known, "")) == []


def differences(ours: Any, known: Any, place: str) -> Iterator[str]:
    """What is ours and not known; what has its default may be left out."""
    if isinstance(ours, dict) and isinstance(known, dict):
        for key, value in ours.items():
            if key in known:
                yield from differences(value, known[key], f"{place}.{key}")
            elif value not in (None, [], ""):
                yield f"{place}.{key}"
    elif isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
        for index, (one, other) in enumerate(zip(ours, known, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif ours != known:
        yield f"{place}: {ours!r} became {known!r}"


def test_panels_lie_beside_each_other_and_have_numbers_of_their_own(render: Render) -> None:
    for path in (render("llama-tiny", SLO).folder / "monitoring/grafana").iterdir():
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert at["x"] + at["w"] <= 24
            assert not cells & taken
            taken |= cells


# What is asked, and what is refused


def targets(bundle: Bundle, job: str) -> list[tuple[str, str]]:
    configs = document(bundle, "prometheus.yml")["scrape_configs"]
    [found] = [row for row in configs if row["job_name"] == job]
    return [(row["targets"][0], row["labels"]["instance"]) for row in found["static_configs"]]


def test_every_instance_on_every_host_is_asked_under_one_name(render: Render) -> None:
    given = ("hardware.num_gpus=2", "instances=2", "targets.monitoring.hosts=[n1, '::1']")
    bundle = render("llama-tiny", *given)
    fronts = ["n1:8000", "n1:8010", "[::1]:8000", "[::1]:8010"]
    metrics_ports = ["n1:8002", "n1:8012", "[::1]:8002", "[::1]:8012"]
    assert targets(bundle, "server") == list(zip(metrics_ports, fronts, strict=True))
    urls = [f"http://{front}/v2/health/ready" for front in fronts]
    assert targets(bundle, "ready") == list(zip(urls, fronts, strict=True))
    assert targets(bundle, "gpu") == [("n1:9400", "n1"), ("[::1]:9400", "::1")]


def test_a_server_on_all_addresses_is_asked_on_its_own_machine(render: Render) -> None:
    bundle = render("llama-tiny", "targets.triton.host=0.0.0.0")
    assert targets(bundle, "server") == [("127.0.0.1:8002", "127.0.0.1:8000")]


def test_readiness_over_grpc_needs_no_certificate_of_ours(render: Render) -> None:
    closed = TLS.replace("server.key}", "server.key, client_ca: /tls/ca.pem}")
    off = "targets.triton.http=false"
    assert targets(render("llama-tiny", TLS, off), "ready") == [("127.0.0.1:8001",) * 2]
    jobs = document(render("llama-tiny", closed, off), "prometheus.yml")["scrape_configs"]
    assert {job["job_name"] for job in jobs} == {"server", "certificate", "gpu"}


def test_what_no_exporter_measures_is_left_out(render: Render) -> None:
    given = ("targets.monitoring.blackbox=null", "targets.monitoring.dcgm_port=null")
    bundle = render("llama-tiny", *given, TLS, "targets.triton.http=false")
    left = {"CertificateExpires", "GpuError", "GpuMemoryFaulty"}
    assert not names(bundle) & left
    assert "ServerNotReady" in names(bundle)
    assert not (bundle.folder / "monitoring/blackbox.yml").exists()


@by_table
def test_what_cannot_be_watched_is_refused(setting: str, message: str, render: Render) -> None:
    with pytest.raises(BadInput) as raised:
        render("llama-tiny", setting)
    assert message in "\n".join(map(str, raised.value.diagnostics))


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "{{ $value }}", '"} or vector(1)'])
def test_a_text_in_promql_stays_a_text(text: str, tmp_path: Path) -> None:
    expression = f"absent(up{{deployment={signals.quoted(text)}}})"
    file = tmp_path / "rules.yml"
    groups = {"groups": [{"name": "g", "rules": [{"record": "r", "expr": expression}]}]}
    file.write_text(yaml.safe_dump(groups))
    subprocess.run([program("promtool"), "check", "rules", file], check=True, capture_output=True)
    sample = {"labels": f"r{{deployment={json.dumps(text)}}}", "value": 1}
    expected = {"expr": "r", "eval_time": "1m", "exp_samples": [sample]}
    row = {"interval": "1m", "input_series": [], "promql_expr_test": [expected]}
    test = {"rule_files": [str(file)], "tests": [row]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    command = [program("promtool"), "test", "rules", str(tmp_path / "test.yml")]
    assert_accepted(command)
