"""`builder upgrade`: a bundle's deployment for another release, and the page of what changes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from builder import bundle, pipeline
from builder.bundle import Bundle
from builder.errors import BadInput
from builder.facts import advisories
from builder.targets.kubernetes.workload import object_name
from builder.upgrade import move
from builder.upgrade import page as upgrade_page
from builder.upgrade.comparison import Upgrade
from tests.conftest import Run

PRESET = "deepseek-v3.2-nvfp4-gb200"
NEW = "1.3.0rc29"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    overrides = ["targets.kubernetes.server=trtllm_serve", "slo.ttft_ms=1000"]
    folder = tmp_path_factory.mktemp("old") / "bundle"
    return pipeline.render(PRESET, folder, overrides, more_targets=["kubernetes", "monitoring"])


@pytest.fixture(scope="module")
def found(old: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Upgrade:
    return move.upgrade(old.folder, NEW, [], tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def page(found: Upgrade) -> str:
    return upgrade_page.text(found)


def chapter(page: str, title: str) -> str:
    """A chapter of a page, without its parts of the same level."""
    return re.split(r"\n## ", page.partition(f"\n## {title}\n")[2])[0]


@pytest.mark.parametrize(
    ("title", "line"),
    [
        (
            "Options of this deployment",
            "| renamed | `speculative_config.num_nextn_predict_layers` | "
            "`speculative_config.max_draft_len` | `3` | `3` |  |",
        ),
        (f"What {NEW} changes", "| `moe_config.backend` | no longer WIDEEP; now also AUTO, "),
        (
            f"What {NEW} changes",
            "| `enable_sleep` | renamed to sleep_config | no |",
        ),
        (f"What {NEW} changes", "removed, and were not set (9): `fail_fast_on_attention_window_"),
        (f"What {NEW} changes", "| `backend` | type str is now enum; only pytorch | no |"),
        (
            f"What {NEW} changes",
            '| `moe_config.backend` | `"CUTLASS"` | `"AUTO"` | no: set to `"TRTLLM"` |',
        ),
        (
            f"What {NEW} changes",
            "Also of options of groups that are not used here (11): `lora_config.max_lora_rank`, ",
        ),
        (
            f"What {NEW} changes",
            '| `sampler_type` | `"auto"` | decided by the engine | yes: not set |',
        ),
        (f"What {NEW} changes", "| `--fail_fast_on_attention_window_too_large` | removed |"),
        (f"What {NEW} changes", "New flags (19): `--agent_percentage`"),
        (
            "Metrics and endpoints",
            '| `trtllm_serve.model_name` | not set | `"DeepSeek-V3.2-NVFP4"` |',
        ),
        (
            "Metrics and endpoints",
            "| `time_to_first_token_seconds` | `trtllm_time_to_first_token_seconds` |",
        ),
        (
            "Images",
            "| trtllm-serve | `nvcr.io/nvidia/tensorrt-llm/release:1.2.1` | "
            f"`nvcr.io/nvidia/tensorrt-llm/release:{NEW}` |",
        ),
        ("Images", "- Triton Inference Server: no published one is listed as of "),
        ("Memory of each GPU", "| kv bytes per token | 45,312 | 43,896 |"),
        (
            "Memory of each GPU",
            "| KV cache layers of multi-token prediction | one for each draft token | "
            "one for all draft tokens | 45,312 to 43,896 bytes of KV cache for each token | ",
        ),
        ("Known defects", "Fixed (2):"),
        ("Known defects", "| 1.2.1 ends with a segmentation fault after the weights are"),
        ("Known defects", "Unknown (8):"),
        (
            "Known vulnerabilities",
            "Fixed (12):\n\n| vulnerability | CVSS | in | fixed in |\n| --- | --- | --- | --- |\n"
            "| `CVE-2026-24233` | 8.4 | TensorRT-LLM 1.2.1 | 1.3.0rc15 |",
        ),
        (
            "Known vulnerabilities",
            f"| `CVE-2026-65119` | 8.4 | TensorRT-LLM {NEW} | no version yet |",
        ),
        ("Order of rolling", 'kubectl apply --kustomize "$NEXT/kubernetes"'),
        ("Order of rolling", 'kubectl apply --kustomize "$PREVIOUS/kubernetes"'),
    ],
)
def test_the_page_says_what_changes_and_why(page: str, title: str, line: str) -> None:
    assert line in chapter(page, title)


def test_objects_are_in_the_order_in_which_they_change(page: str) -> None:
    rows = re.findall(r"\| (\w+) \S+ \| (\w+) \| ([\w ]+) \|", chapter(page, "Order of rolling"))
    assert rows == [
        ("ConfigMap", "new", "restarts nothing"),
        ("Deployment", "changed", "restarts its pods"),
        ("ConfigMap", "delete", "after the last old pod"),
    ]


def test_the_new_deployment_renders_the_new_bundle(found: Upgrade, tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(found.deployment)
    assert pipeline.render(str(file), tmp_path / "next").digest == found.new.digest
    assert yaml.safe_load(found.deployment)["engine"]["release"] == NEW


def test_another_name_runs_side_by_side(old: Bundle, tmp_path: Path) -> None:
    """The commands start the second, show both addresses, and take the first down."""
    found = move.upgrade(old.folder, NEW, ["name=side-b"], tmp_path)
    rolling = chapter(upgrade_page.text(found), "Side by side")
    old_name = object_name(PRESET)
    steps = [
        f'export BUNDLE="$PWD"/{PRESET} NEXT="$PWD"/side-b',
        'use "$NEXT" 200',
        'kill -TERM "$(cat "$OLD/server.pid")"',
        'kubectl apply --kustomize "$NEXT/kubernetes"',
        "--selector=app.kubernetes.io/instance=side-b",
        f'get services --selector="app.kubernetes.io/instance in (side-b, {old_name})"',
        'kubectl delete --kustomize "$BUNDLE/kubernetes"',
        f"kubectl delete configmaps --selector=app.kubernetes.io/instance={old_name}",
    ]
    places = [rolling.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
    assert {row["change"] for row in found.objects} == {"new", "delete"}  # none is of both


def test_a_bundle_that_this_toolkit_would_plan_differently_is_marked(found: Upgrade) -> None:
    assert "Not all changes are the release's" not in upgrade_page.text(found)
    [first, *rest] = found.old.manifest["decisions"]
    changed = {**found.old.manifest, "decisions": [{**first, "reason": "older"}, *rest]}
    older = replace(found, old=replace(found.old, manifest=changed))
    assert "Toolkit 0." in chapter(upgrade_page.text(older), "What to do")


def moved(
    folder: Path, text: str, *overrides: str, release: str = "1.2.1", to: str = NEW
) -> Upgrade:
    file = folder / "deployment.yaml"
    file.write_text(BASE.replace("1.2.1", release) + text)
    old = pipeline.render(str(file), folder / "bundle")
    return move.upgrade(old.folder, to, list(overrides), folder / "scratch")


BASE = """\
name: ours
checkpoint: nvidia/DeepSeek-V3.2-NVFP4
hardware: {gpu: gb200, num_gpus: 4}
engine: {release: 1.2.1}
workload: {isl: 800, osl: 1600, concurrency: 64}
targets:
  trtllm_serve:
"""
MIRROR = "mirror.example/nvidia/tensorrt-llm/release"


def test_renamed_options_mirrored_images_and_acceptances_follow(tmp_path: Path) -> None:
    found = moved(
        tmp_path,
        "  triton:\n"
        f"images: {{trtllm_serve: '{MIRROR}:1.2.1@sha256:{'0' * 64}',\n"
        "  triton: mirror.example/nvidia/tritonserver:26.07-trtllm-python-py3}\n"
        "engine_config: {speculative_config: {num_nextn_predict_layers: 2}}\n"
        "accepted_advisories: [{product: tensorrt_llm, version: 1.2.1, reason: for one week}]\n",
    )
    data = yaml.safe_load(found.deployment)
    assert data["images"] == {"trtllm_serve": f"{MIRROR}:{NEW}"}
    assert data["engine_config"] == {"speculative_config": {"max_draft_len": 2}}
    assert "accepted_advisories" not in data
    assert [row[0] for row in found.edits] == [
        "engine_config.speculative_config.num_nextn_predict_layers",
        "images.trtllm_serve",
        "images.triton",
        "accepted_advisories.0",
    ]
    assert f'`"{MIRROR}:{NEW}"`' in chapter(upgrade_page.text(found), "What to do")


@pytest.mark.parametrize(
    ("text", "to", "words"),
    [
        (
            "engine_config: {disable_flashinfer_sampling: true}\n",
            "1.3.0rc23",
            r"deployment.yaml:\d+: engine_config.disable_flashinfer_sampling: unknown option",
        ),
        (
            "engine_config: {disable_flashinfer_sampling: true}\n",
            NEW,
            r"deployment.yaml:\d+: engine_config.disable_flashinfer_sampling: .* it is gone since",
        ),
        (
            "engine_config: {enable_attention_dp: true, moe_config: {backend: WIDEEP}}\n",
            NEW,
            r"deployment.yaml:\d+: engine_config.moe_config.backend: WIDEEP is not allowed",
        ),
        (
            "images: {trtllm_serve: example.com/own/llm:7}\n",
            NEW,
            r"deployment.yaml:\d+: images.trtllm_serve: example.com/own/llm:7 is not known to have "
            rf"{NEW}; name one that has: --set images.trtllm_serve=REFERENCE",
        ),
        ("", "1.3.0rc27", "--to: 1.3.0rc27 has no option table; choose one of 1.0.0, "),
        ("", "1.2.1", "--to: 1.2.1 is the release of the bundle"),
        ("", "newest", "--to: release newest of tensorrt_llm has no option table"),
    ],
)
def test_what_has_no_counterpart_is_refused_at_its_line(
    tmp_path: Path, text: str, to: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        moved(tmp_path, text, to=to)


def test_a_name_that_is_the_same_in_kubernetes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="name: Ours and ours have one name in Kubernetes, ours"):
        moved(tmp_path, "", "name=Ours")


def test_overrides_name_an_image_and_remove_an_option(tmp_path: Path) -> None:
    found = moved(
        tmp_path,
        "images: {trtllm_serve: example.com/own/llm:7}\n"
        "engine_config: {disable_flashinfer_sampling: true, max_beam_width: 1}\n",
        "images.trtllm_serve=example.com/own/llm:8",
        "engine_config.disable_flashinfer_sampling=null",
    )
    data = yaml.safe_load(found.deployment)
    assert data["images"] == {"trtllm_serve": "example.com/own/llm:8"}
    assert data["engine_config"] == {"max_beam_width": 1}


def test_an_older_release_is_a_downgrade_that_says_what_it_loses(tmp_path: Path) -> None:
    found = moved(tmp_path, "", "engine_config.moe_config.backend=TRTLLM", release=NEW, to="1.2.1")
    page = upgrade_page.text(found)
    assert page.startswith("# Downgrade of ours to TensorRT-LLM 1.2.1\n\nDowngrade. ")
    steps = chapter(page, "What to do")
    assert "1.2.1 is older than 1.3.0rc29. Known defects that are back again: 2; known" in steps
    assert "**Known vulnerabilities**: 3 left, 12 back again" in steps
    assert "Back again (12):" in chapter(page, "Known vulnerabilities")
    assert "Endpoints that are gone (" in chapter(page, "Metrics and endpoints")


@pytest.mark.parametrize(
    ("preset", "note"),
    [
        ("deepseek-r1-0528-nvfp4-b200", "**Lower estimated output.** All GPUs together serve less"),
        ("deepseek-v3.2-nvfp4-b300", "**Fewer GPUs.** No measurements say what they serve"),
    ],
)
def test_a_lower_output_of_all_gpus_is_said(tmp_path: Path, preset: str, note: str) -> None:
    old = pipeline.render(preset, tmp_path / "bundle")
    half = ["hardware.num_gpus=4", "engine_config.tensor_parallel_size=4"]
    found = move.upgrade(old.folder, NEW, half, tmp_path / "scratch")
    assert note in chapter(upgrade_page.text(found), "What to do")


def test_a_checkpoint_that_is_not_here_is_planned_from_the_facts_of_the_bundle(
    tmp_path: Path, make_miniature: Callable[[str], Path]
) -> None:
    folder = shutil.copytree(make_miniature("llama-tiny"), tmp_path / "model")
    old = pipeline.render("llama-tiny", tmp_path / "bundle", [f"checkpoint={folder}"])
    shutil.rmtree(folder)
    found = move.upgrade(old.folder, NEW, [], tmp_path / "scratch")
    assert yaml.safe_load(found.deployment)["checkpoint"] == str(folder)


def test_a_release_that_is_refused_by_now_can_be_left(old: Bundle, tmp_path: Path) -> None:
    newer = shutil.copytree(advisories.ADVISORIES, tmp_path / "advisories")
    file = newer / "tensorrt_llm.yaml"
    document = yaml.safe_load(file.read_text())
    document["minimum"]["version"] = "1.3.0rc20"
    file.write_text(yaml.safe_dump(document))
    with advisories.of_folder(newer):
        with pytest.raises(BadInput, match=r"1\.2\.1 has 15 known vulnerabilities"):
            pipeline.plan(str(old.folder / "deployment.yaml"))
        found = move.upgrade(old.folder, NEW, [], tmp_path / "scratch")
    assert not yaml.safe_load(found.deployment)["accepted_advisories"]


def test_both_sides_of_disaggregated_serving_move_and_stop_together(tmp_path: Path) -> None:
    old = pipeline.render("deepseek-v3.2-nvfp4-gb200x32", tmp_path / "bundle")
    own = ["engine_config.moe_config.backend=CUTEDSL"]
    found = move.upgrade(old.folder, NEW, own, tmp_path / "scratch")
    assert found.after.prefill
    assert found.after.prefill.plan.facts.release.name == NEW
    page = upgrade_page.text(found)
    kinds = re.findall(r"\| \w+ \S+(prefill|decode|router) \| changed \| stop it first", page)
    assert kinds == ["prefill", "decode", "router"]
    assert "\n### Prefill\n" in chapter(page, "Memory of each GPU")


def test_vllm_has_the_same_page(tmp_path: Path) -> None:
    old = pipeline.render("deepseek-v3.2-nvfp4-gb300-vllm", tmp_path / "bundle")
    page = upgrade_page.text(move.upgrade(old.folder, "0.32.0", [], tmp_path / "scratch"))
    assert "| added |  | `shutdown_timeout` | not set | `300` |" in page
    assert "| `gpu_memory_utilization` | `0.9` | `0.92` | no: set to `0.9` |" in page
    assert "| `vllm:time_per_output_token_seconds` | removed |" in page
    assert "| vllm serve | `docker.io/vllm/vllm-openai:v0.14.1` | " in page


def test_the_verb_writes_both_files_into_a_new_folder(
    builder: Run, old: Bundle, tmp_path: Path
) -> None:
    done = builder("upgrade", old.folder, "--to", NEW, "-o", tmp_path / "next")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "next").iterdir()) == [
        "deployment.yaml",
        "upgrade.md",
    ]
    assert bundle.read(old.folder).digest == old.digest
    again = builder("upgrade", old.folder, "--to", NEW, "-o", tmp_path / "next")
    assert (again.returncode, "exists; choose another folder" in again.stderr) == (2, True)
