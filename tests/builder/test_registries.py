"""An engine and a server are one record each, and their names stand in their own modules only."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.bundle import File
from builder.documents import DATA
from builder.errors import BadFacts, BadInput
from builder.facts import engines, release, servers
from builder.facts.release.version import is_stable
from builder.rules import constraints
from builder.rules.context import RuleContext
from builder.servers import Port, RenderContext, RenderedServer, ServerOptions, openai, triton
from tests.conftest import ROOT

ENGINE, SERVER = "second_engine", "third_server"
NAMES = {*engines.names(), *servers.names()}
# Where a name of an engine or a server may stand: its own module, what reads an engine's own
# Python, the check of Triton's own files, and the engine's stand-in.
OWN_MODULES = (
    *(f"builder/servers/{name}.py" for name in servers.names()),
    *("builder/facts/release_import/probe.py", "builder/facts/release_import/vllm.py"),
    *("builder/lint/rules/triton", "launch/reference/"),
)
PACKAGES = ("builder", "launch", "model_repository", "supervisor")


def sources() -> Iterator[Path]:
    for path in sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        if not path.relative_to(ROOT).as_posix().startswith(OWN_MODULES):
            yield path


def test_names_of_engines_and_servers_stand_in_their_own_modules() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    }
    assert not found


@pytest.mark.parametrize("name", engines.names())
def test_a_record_of_an_engine_names_what_there_is(name: str) -> None:
    row = engines.load(name)
    assert row.name == name
    assert all((DATA / path).exists() for path in (row.releases, row.heuristics))
    assert (DATA / row.rules).is_file()


@pytest.mark.parametrize("name", servers.names())
def test_a_record_of_a_server_fits_its_module(name: str) -> None:
    row = servers.load(name)
    assert row.name == name
    assert set(row.engines) <= set(engines.names())
    assert row.metrics.protocol in row.ports
    (engine, *_) = row.engines
    newest = [one.name for one in release.of_engine(engines.load(engine)) if is_stable(one.name)][
        -1
    ]
    request = [f"engine={{name: {engine}, release: {newest}}}", f"targets={{{name}: {{}}}}"]
    planned = pipeline.plan("llama-tiny", request)
    rendered = planned.context.servers[name]
    assert dict(rendered.ports) == dict(row.ports)
    assert rendered.entry["ready"]["path"] == row.paths["ready"]
    assert row.option_file(str(row.default_model)) in rendered.files


def test_a_wrong_record_is_refused_by_line_and_key(tmp_path: Path) -> None:
    text = (servers.SERVERS / "triton.yaml").read_text(encoding="utf-8")
    wrong = tmp_path / "triton.yaml"
    wrong.write_text(text.replace("program:", "programme:"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BadFacts) as caught:
        patch.setattr(servers, "SERVERS", tmp_path)
        servers.load("triton")
    [unknown] = [row for row in caught.value.diagnostics if "programme" in row.where]
    assert unknown.where.startswith(f"{wrong}:6")
    assert "program" in unknown.fix


def test_each_server_is_rendered_once_for_all_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[str] = []

    def counted(module: Any) -> None:
        render = module.render

        def once(name: str, context: RenderContext, options: Any) -> RenderedServer:
            counts.append(name)
            rendered: RenderedServer = render(name, context, options)
            return rendered

        monkeypatch.setattr(module, "render", once)

    counted(triton)
    counted(openai)
    site = ROOT / "tests" / "golden" / "site.yaml"
    running = {"server": "triton"}
    targets = {
        "trtllm_serve": {},
        "triton": {},
        "kubernetes": running,
        "compose": running,
        "slurm": {**running, "site": str(site)},
        "monitoring": {},
        "handoff": {},
    }
    pipeline.render(
        "llama-tiny",
        tmp_path / "bundle",
        [f"targets={json.dumps(targets)}", "environment={FIRST: a}"],
    )
    assert sorted(counts) == ["triton", "trtllm_serve"]


class _Options(ServerOptions):
    port: Port = 9100

    @property
    def ports(self) -> dict[str, int]:
        return {"http": self.port}


def _render(name: str, context: RenderContext, options: _Options) -> RenderedServer:
    script = File(b"#!/usr/bin/env bash\nexec third-server\n", executable=True)
    return RenderedServer(
        servers.load(name),
        options,
        {f"{name}/serve.sh": script},
        {
            "argv": ["bash", f"{name}/serve.sh"],
            "host": "127.0.0.1",
            "ports": options.ports,
            "environment": {**context.checkpoints, "SERVE_HTTP_PORT": str(options.port)},
            "ready": {"port": "http", "path": "/healthy"},
            "start_timeout_s": 60,
        },
    )


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second engine by a record, and a third server by a record and a module."""
    record = yaml.safe_load((engines.ENGINES / "tensorrt_llm.yaml").read_text())
    record |= {"name": ENGINE, "title": "Second Engine", "product": "second", "default": False}
    _add(tmp_path, monkeypatch, engines, "ENGINES", record)
    record = yaml.safe_load((servers.SERVERS / "trtllm_serve.yaml").read_text())
    record |= {
        "name": SERVER,
        "title": "Third Server",
        "engines": [ENGINE],
        "ports": {"http": 9100},
        "image": {"product": "third", "repository": "third-server"},
        "roles": ["agg"],
        "paths": {"ready": "/healthy", "live": "/alive", "metrics": "/metrics"},
    }
    _add(tmp_path, monkeypatch, servers, "SERVERS", record)
    server = ModuleType(SERVER)
    server.__dict__.update(Options=_Options, render=_render)
    monkeypatch.setitem(sys.modules, f"builder.servers.{SERVER}", server)
    yield
    monkeypatch.undo()
    for module in (engines, servers):
        module.names.cache_clear()


def _add(
    tmp_path: Path, patch: pytest.MonkeyPatch, module: Any, name: str, record: dict[str, Any]
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for path in getattr(module, name).glob("*.yaml"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / f"{record['name']}.yaml").write_text(yaml.safe_dump(record))
    patch.setattr(module, name, folder)
    module.names.cache_clear()


@pytest.mark.usefixtures("registered")
def test_a_second_engine_and_a_third_server_are_records(tmp_path: Path) -> None:
    image = f"registry.example/third-server:1.0@sha256:{'0' * 64}"
    targets = [SERVER, "compose", "kubernetes", "handoff"]
    bundle = pipeline.render(
        "llama-tiny",
        tmp_path / "bundle",
        [
            f"engine={{name: {ENGINE}, release: 1.2.1}}",
            f"targets={json.dumps(targets)}",
            f"images={{{SERVER}: '{image}'}}",
        ],
    )
    assert bundle.launch["engine"]["name"] == ENGINE
    assert bundle.launch["targets"][SERVER]["ports"] == {"http": 9100}
    compose = yaml.safe_load((bundle.folder / "compose" / "compose.yaml").read_text())
    assert compose["services"]["server"]["image"] == image
    assert "http://127.0.0.1:9100/alive" in str(compose["services"]["server"]["healthcheck"])
    runbook = (bundle.folder / "handoff" / "runbook.md").read_text()
    assert "| `9100` | HTTP | Third Server |" in runbook
    assert "Second Engine 1.2.1" in runbook
    bill = json.loads((bundle.folder / "handoff" / "sbom.cdx.json").read_text())
    products = {row["name"] for row in bill["components"] if row["type"] == "framework"}
    assert products == {"Second Engine", "Third Server"}


RULES = """
rules:
- id: second-engine-batch
  releases: all
  severity: error
  must: {max_batch_size: {at_most: 3}}
  message: "{max_batch_size} is more than the second engine takes"
  fix: give at most 3
  source: this test
  confidence: read
agreements: []
flags: []
option_table: {}
engine_conduct: {}
"""


@pytest.fixture
def with_own_rules(registered: None, tmp_path: Path) -> None:
    """The second engine's record names a rules file and heuristics of its own."""
    (tmp_path / "rules.yaml").write_text(RULES)
    shutil.copytree(DATA / engines.load("tensorrt_llm").heuristics, tmp_path / "heuristics")
    limits = tmp_path / "heuristics" / "limits.yaml"
    usual = '{value: {sum: [requests_per_rank]}, evidence: derived, source: "workload.concurrency"}'
    own = "{value: 3, evidence: derived, source: this test}"
    assert usual in limits.read_text()
    limits.write_text(limits.read_text().replace(usual, own))
    path = engines.ENGINES / f"{ENGINE}.yaml"
    record = yaml.safe_load(path.read_text())
    record |= {"rules": str(tmp_path / "rules.yaml"), "heuristics": str(tmp_path / "heuristics")}
    path.write_text(yaml.safe_dump(record))


@pytest.mark.usefixtures("with_own_rules")
def test_rules_are_those_of_the_engine_of_a_release() -> None:
    def broken(engine: str) -> set[str]:
        context = RuleContext(release.load("1.2.1", engine=engines.load(engine)))
        options = {"max_batch_size": 4, "tensor_parallel_size": 0}
        return {row.rule for row in constraints.violations(options, context)}

    assert broken(ENGINE) == {"second-engine-batch"}
    assert broken("tensorrt_llm") == {"size-above-zero"}


@pytest.mark.usefixtures("with_own_rules")
def test_a_plan_follows_the_rules_and_heuristics_of_its_engine() -> None:
    def batch(engine: str) -> list[Any]:
        targets = f"targets=[{SERVER if engine == ENGINE else 'triton'}]"
        image = f"images={{{SERVER}: 'registry.example/third-server:1.0'}}"
        changes = [f"engine={{name: {engine}, release: 1.2.1}}", targets, image]
        decisions = pipeline.plan("llama-tiny", ["workload.concurrency=2", *changes]).plan.decisions
        return [row.value for row in decisions if row.path == "max_batch_size"]

    assert (batch(ENGINE), batch("tensorrt_llm")) == ([3], [2])


@pytest.mark.usefixtures("registered")
def test_a_server_of_another_engine_is_refused() -> None:
    """Unless one of its own speaks like it, which takes its place."""
    engine = f"engine={{name: {ENGINE}, release: 1.2.1}}"
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [engine, "targets=[triton]"])
    [problem] = caught.value.diagnostics
    assert problem.message == f"does not serve {ENGINE}"
    assert problem.fix == f"choose from {SERVER}"
    replaced = pipeline.plan("llama-tiny", [f"targets=[{SERVER}]"])
    assert list(replaced.plan.deployment.targets) == ["trtllm_serve"]


@pytest.mark.usefixtures("registered")
def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", ["engine={name: third_engine, release: 1.2.1}"])
    [problem] = caught.value.diagnostics
    assert problem.fix == f"Known: {ENGINE}, tensorrt_llm, vllm"
