"""Runbook and objectives: what they say, and that no value of a user becomes structure."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from builder import deployment, pipeline
from builder.bundle import Bundle
from builder.diagnostics import printable
from builder.errors import BadInput
from builder.facts import checkpoint, model_names
from builder.targets.handoff.document import (
    Document,
    Section,
    bullets,
    code,
    command,
    facts,
    markdown,
    note,
    page,
    paragraph,
    remedies,
    table,
)
from tests.handoff import runbook

REQUEST: dict[str, Any] = {
    "name": "chat",
    "checkpoint": "nvidia/DeepSeek-V3.2-NVFP4",
    "hardware": {"gpu": "gb200", "num_gpus": 4},
    "engine": {"release": "1.2.1"},
    "workload": {"isl": 800, "osl": 1600, "concurrency": 64},
    "targets": {"trtllm_serve": {}, "triton": {}, "handoff": {}},
}
SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))
AWKWARD = (
    "a | b",
    "`ls`; ``two``",
    "# heading",
    "</code><script>alert(1)</script>",
    "[text](javascript:alert(1)) ![](x)",
    "**bold** _low_ ~~gone~~ <b>",
    "line\nbreak\r\n\n# next",
    "- item\n1. item\n> quote",
    "{{ 7 * 7 }} {% raw %} @{name} ${HOME} $(id)",
    "&amp; &lt; \\ \\| \\`",
    "```\nfence\n```",
    "“quotes” 'and' \"these\" é 漢 ‮",
)

Render = Callable[..., Bundle]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    def make(**changes: Any) -> Bundle:
        (tmp_path / "request.yaml").write_text(yaml.safe_dump({**REQUEST, **changes}))
        return pipeline.render(str(tmp_path / "request.yaml"), tmp_path / "bundle", force=True)

    return make


def text(bundle: Bundle, name: str) -> str:
    return (bundle.folder / "handoff" / name).read_text(encoding="utf-8")


@dataclass
class Outline(HTMLParser):
    """The tags of a page in their order, and its text."""

    tags: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    return found


# What it says


def test_the_runbook_answers_what_a_receiving_team_asks(render: Render) -> None:
    found = text(render(), "runbook.md")
    for said in (
        "nvidia/DeepSeek-V3.2-NVFP4",
        "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
        "| `8001` | gRPC | Triton Inference Server | `127.0.0.1` |",
        "| weights | 100.4 |",
        "1,357,728 tokens of 45,312 bytes",
        "| `max_requests` | 256 |",
        "272 output tok/s",
        "This deployment had not run on GB200",
        "Microsoft and NVIDIA, DeepSeek-V3.2 on GB200 (2026-02)",
        '`kv_cache_config.dtype` | `"fp8"` | FP8 halves the bytes',
        "MIT",
        "no Python code from the checkpoint runs",
        "CVE-2026-65119",
        "[mirror.md](mirror.md)",
        "[sbom.cdx.json](sbom.cdx.json)",
    ):
        assert said in found, said


def test_every_alert_rule_links_to_a_part_of_the_runbook(render: Render) -> None:
    bundle = render(
        targets={"triton": {}, "monitoring": {}, "handoff": {}}, slo={"ttft_ms": 1000, "itl_ms": 20}
    )
    rules = yaml.safe_load((bundle.folder / "monitoring/rules/alerts.yml").read_text())
    links = [
        rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]
    ]
    found = outline(text(bundle, "runbook.html"))
    assert len(links) > 12
    for link in links:
        page, _, anchor = link.partition("#")
        assert (bundle.folder / page).is_file() and anchor in found.ids


def test_only_what_the_bundle_holds_has_instructions(render: Render) -> None:
    chapters = outline(text(render(), "runbook.html")).ids
    assert {"node", "alert-requests-fail"} <= {*chapters}, "also without rules for alerts"
    assert not {"slurm", "kubernetes", "compose"} & set(chapters)
    both = render(targets={**REQUEST["targets"], "kubernetes": {"server": "triton"}})
    assert "kubernetes" in outline(text(both, "runbook.html")).ids


def test_objectives_are_those_of_the_deployment_and_none_is_made_up(render: Render) -> None:
    without = text(render(), "slo.md")
    assert "assumed" in without and "first token within" not in without
    with_limits = text(render(slo={"ttft_ms": 1000, "itl_ms": 20}), "slo.md")
    assert "a first token within 1000 ms" in with_limits


def test_what_the_deployment_accepts_is_said_and_remote_code_named_where_it_is_on(
    render: Render,
) -> None:
    reason = "The router is not used here, and no prompt comes from outside."
    row = {"product": "tensorrt_llm", "version": "1.2.1", "reason": reason}
    changes = {"engine_config": {"trust_remote_code": True}, "accepted_advisories": [row]}
    found = text(render(**changes), "runbook.md")
    assert "Python code from the checkpoint runs in the server" in found
    assert f"> **Accepted by the deployment.** {reason}" in found


def test_a_license_that_is_not_known_is_said_to_be(
    render: Render, make_miniature: Callable[[str], Path]
) -> None:
    found = text(render(checkpoint=str(make_miniature("llama-tiny"))), "runbook.md")
    assert "unknown to this toolkit; see the checkpoint" in found


def test_every_model_that_ships_has_a_license_with_its_source() -> None:
    for name in model_names.known_names():
        found = checkpoint.gather(name).license
        assert found and found.name and found.source, name


# Its form


def test_both_forms_have_the_same_chapters_and_commands(render: Render) -> None:
    bundle = render()
    written, shown = text(bundle, "runbook.md"), outline(text(bundle, "runbook.html"))
    tokens = MarkdownIt("commonmark").enable("table").parse(written)
    fences = [token.content.rstrip() for token in tokens if token.type == "fence"]
    assert fences and len(fences) == shown.tags.count("pre")
    headings = [token.tag for token in tokens if token.type == "heading_open"]
    assert headings == [tag for tag in shown.tags if tag in ("h1", "h2", "h3", "h4")]


def test_every_link_of_the_page_leads_somewhere(render: Render) -> None:
    bundle = render()
    for name in ("runbook", "slo"):
        found = outline(text(bundle, f"{name}.html"))
        for link in found.links:
            if link.startswith("#"):
                assert link[1:] in found.ids
            elif not link.startswith(("https:", "data:")):
                known = (bundle.folder / "handoff" / link).exists()
                assert known or link == "../evidence/report.html", link


def test_two_handoffs_are_the_same_byte_for_byte(render: Render) -> None:
    one, two = (
        {
            path: path.read_bytes()
            for path in (render().folder / "handoff").rglob("*")
            if path.is_file()
        }
        for _ in range(2)
    )
    assert one == two


# What users give


def everywhere(words: str) -> Document:
    """A document with these words wherever a value can stand."""
    row = (words, code(words))
    blocks = (
        paragraph(words + code(words)),
        bullets(row),
        note(words, words),
        facts(((words, words), (words, code(words)))),
        table(words, (words, words), (row,), numeric={1}),
        command(words, "true\n", words),
        remedies(((words, words, "true\n"),)),
        Section("inner", words, ()),
    )
    return Document(words, words, (words,), (Section("outer", words, blocks),))


def markdown_structure(written: str) -> list[str]:
    """The kinds of all tokens, but for what splits a text into pieces."""
    found: list[str] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(written):
        found.append(token.type)
        found += [
            child.type
            for child in token.children or ()
            if child.type not in ("text", "text_special", "softbreak")
        ]
    return found


@pytest.mark.parametrize("words", AWKWARD)
def test_awkward_words_stay_words(words: str) -> None:
    assert_words_stay_words(words)


@settings(max_examples=300)
@given(st.text(st.characters(codec="utf-8")).filter(str.strip))
def test_any_words_stay_words(words: str) -> None:
    assert_words_stay_words(words)


def assert_words_stay_words(words: str) -> None:
    plain_document, awkward = everywhere("words"), everywhere(words)
    assert outline(page(awkward)).tags == outline(page(plain_document)).tags
    written, expected = markdown(awkward), markdown(plain_document)
    assert markdown_structure(written) == markdown_structure(expected), written


def test_a_users_words_are_read_as_they_were_written(render: Render) -> None:
    bundle = render(notes=list(AWKWARD))
    shown = " ".join("".join(outline(text(bundle, "runbook.html")).words).split())
    for words in AWKWARD:
        assert printable(" ".join(words.split())) in shown  # as JSON has what turns the text


@pytest.mark.parametrize("folder", ["it's $HOME", "a`id`b", 'say "hi"; rm -rf x', "é & | > y"])
def test_a_path_is_one_word_of_the_shell(
    folder: str, render: Render, make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    weights = shutil.copytree(make_miniature("llama-tiny"), tmp_path / folder)
    found = text(
        render(checkpoint=str(weights), targets={"trtllm_serve": {}, "handoff": {}}), "runbook.md"
    )
    (line,) = (line for line in found.splitlines() if line.startswith("export CHECKPOINT="))
    printed = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$CHECKPOINT"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == str(weights)


def test_commands_of_every_preset_are_sound_shell(tmp_path: Path) -> None:
    """One server, several, one side of a service; with and without a draft model. What several
    presets print is checked once."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    printed: dict[str, str] = {}
    for preset in deployment.preset_names():
        bundle = pipeline.render(preset, tmp_path / preset, more_targets=["handoff"])
        for number, block in enumerate(runbook.read(bundle.folder / "handoff/runbook.md")):
            printed.setdefault(block.script, f"{preset}-{number}.sh")
    for script, name in printed.items():
        (scripts / name).write_text(f"#!/usr/bin/env bash\n{script}")
    # Variables and functions are those of the shell that all blocks are typed into.
    shared = "SC2034,SC2154,SC2119,SC2120,SC2317,SC2329"
    command = [
        SHELLCHECK,
        "--shell=bash",
        f"--exclude={shared}",
        *map(str, sorted(scripts.iterdir())),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_server_that_cannot_run_alone_has_no_instructions_for_a_node(tmp_path: Path) -> None:
    decode = "deepseek-v3.2-nvfp4-gb300-decode"
    found = text(pipeline.render(decode, tmp_path / "b", more_targets=["handoff"]), "runbook.md")
    assert "No instructions to start it" in found and "Run it on a node" not in found


def test_a_server_on_several_nodes_is_waited_for_as_the_group_that_it_is(tmp_path: Path) -> None:
    targets = ["kubernetes", "handoff"]
    own = ["targets.kubernetes.server=triton"]
    several = "deepseek-r1-0528-nvfp4-gb200x16"
    found = text(pipeline.render(several, tmp_path / "b", own, more_targets=targets), "runbook.md")
    assert "kubectl wait leaderworkerset" in found and "kubectl rollout status" not in found
    assert "launch rehearse" not in found


def test_all_targets_are_rendered_within_a_second(tmp_path: Path) -> None:
    """The best of three: other programs run on this machine."""
    targets = {
        "triton": {},
        "trtllm_serve": {},
        "handoff": {},
        "monitoring": {},
        "compose": {"server": "triton"},
        "kubernetes": {"server": "triton"},
    }
    (tmp_path / "request.yaml").write_text(yaml.safe_dump({**REQUEST, "targets": targets}))
    times = []
    for turn in range(3):
        start = time.process_time()
        pipeline.render(str(tmp_path / "request.yaml"), tmp_path / str(turn))
        times.append(time.process_time() - start)
    assert min(times) < 1.0


# Prefill and decode servers with their router

SIDES = "deepseek-v3.2-nvfp4-gb200x32"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("sides") / "bundle"
    secret = "targets.kubernetes.group_secret=our-group"
    return pipeline.render(SIDES, folder, [secret], more_targets=["handoff", "monitoring"])


def test_it_waits_for_the_router_as_long_as_its_deployment_does(sides: Bundle) -> None:
    file = sides.folder / "kubernetes/base/workload.yaml"
    rows = yaml.safe_load_all(file.read_text())
    [router] = [row for row in rows if row["kind"] == "Deployment"]
    waits = [
        line
        for line in text(sides, "runbook.md").splitlines()
        if "rollout status deployment" in line
    ]
    limit_s = router["spec"]["progressDeadlineSeconds"]
    assert waits and all(f"--timeout={limit_s}s" in line for line in waits)


def test_it_counts_the_gpus_of_both_sides_and_names_the_secrets_that_pods_mount(
    sides: Bundle,
) -> None:
    found = text(sides, "runbook.md")
    assert "- **GPUs**: 32x GB200\n" in found and "Decode server\n" not in found
    assert "| Secret `our-group` | type `kubernetes.io/tls`" in found
    gate = "targets.kubernetes.gateway={image: a.example/b:1, tls_secret: door}"
    given, more = ["targets.kubernetes.replicas=3", gate], sides.folder.parent / "more"
    other = pipeline.render(SIDES, more, given, more_targets=["handoff"])
    assert "| Secret `door` |" in text(other, "runbook.md")
    assert "- **GPUs**: 32x GB200 (slurm), 40x GB200 (kubernetes)\n" in text(other, "runbook.md")


def test_it_lists_the_ports_of_every_component(sides: Bundle) -> None:
    found = text(sides, "runbook.md")
    name = "deepseek-v3-2-nvfp4-gb200x32"
    services = f"{name}-prefill, {name}-prefill-pods"
    for row in (
        f"| `8000` | HTTP | router | {name}, {name}-pods |",
        f"| HTTP | prefill | {services} |",
        "| HTTP | prefill | prefill0, prefill1 |",
        "| HTTP | decode | decode0, decode1 |",
        "| `9000` | HTTP | router | router |",
    ):
        assert row in found, row


WATCHED = (
    "targets.monitoring={hosts: [d0], prefill_hosts: [p0, p1], router: 'r0:9000', dcgm_port: null}",
    "engine_config.return_perf_metrics=true",
)


def test_monitoring_says_which_of_two_sides_it_does_not_watch(tmp_path: Path) -> None:
    def unwatched(name: str, overrides: Sequence[str] = ()) -> list[str]:
        found = pipeline.plan(name, overrides, more_targets=["monitoring"]).warnings
        return [row.where for row in found if row.where.startswith("targets.monitoring.")]

    places = [f"targets.monitoring.{name}" for name in ("prefill_hosts", "router")]
    assert unwatched(SIDES, ["targets.monitoring.hosts=[d0]"]) == places
    assert not unwatched(SIDES)  # Kubernetes tells of all pods
    assert not unwatched("deepseek-v3.2-gb200x32-prefill")
    assert not unwatched(SIDES, WATCHED)
    assert unwatched(SIDES, [*WATCHED, "targets.monitoring.blackbox=null"]) == places[1:]
    with pytest.raises(BadInput, match="router: is given, and the deployment names no prefill"):
        pipeline.render("llama-tiny", tmp_path, ["targets.monitoring={router: 'r0:9000'}"])


def test_prefill_servers_and_the_router_are_watched_where_they_are_named(tmp_path: Path) -> None:
    folder = pipeline.render(SIDES, tmp_path / "bundle", WATCHED).folder
    jobs = yaml.safe_load((folder / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    found = {
        job["job_name"]: [name for row in job["static_configs"] for name in row["targets"]]
        for job in jobs
    }
    assert found["prefill"] == ["p0:8000", "p1:8000"]
    [prefill] = [job["static_configs"] for job in jobs if job["job_name"] == "prefill"]
    assert {row["labels"]["deployment"] for row in prefill} == {f"{SIDES}-prefill"}
    assert found["ready"] == [
        f"http://{name}/health" for name in ("d0:8000", "p0:8000", "p1:8000", "r0:9000")
    ]
