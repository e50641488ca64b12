"""Hostile texts in every string that takes any: they stay values in every file of every target."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from builder import pipeline, render
from builder.errors import BadInput
from builder.render import yaml_document
from tests.security import hostile
from tests.security.conftest import Render, run
from tests.security.hostile import AMBIGUOUS, CANARY, HOSTILE

COUNT = 10_000

every_text = pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)


@every_text
@pytest.mark.parametrize("server", ["triton", "trtllm_serve"])
def test_a_shell_runs_none_of_it(server: str, value: str, rendered: Render, tmp_path: Path) -> None:
    bundle = rendered(value)
    called = run(bundle.folder / server / "serve.sh", tmp_path)
    assert called["environment"]["MY_VALUE"] == value
    assert called["environment"]["DRAFT_CHECKPOINT"] == f"draft {value}"
    plain = run(rendered("plain").folder / server / "serve.sh", _made(tmp_path / "plain"))
    assert len(called["argv"]) == len(plain["argv"])
    assert not list(tmp_path.rglob(CANARY)) and not list(bundle.folder.rglob(CANARY))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@every_text
def test_yaml_keeps_its_structure_for_readers_of_both_versions(
    value: str, rendered: Render
) -> None:
    plain = hostile.files(rendered("plain").folder, ".yaml", ".yml")
    found = hostile.files(rendered(value).folder, ".yaml", ".yml")
    assert len(found) > 15 and found.keys() == plain.keys()
    for name, text in found.items():
        documents = hostile.yaml_1_1(text)
        assert hostile.yaml_1_2(text) == documents, name
        found_shape = _shape(_plain_names(documents, value))
        assert found_shape == _shape(hostile.yaml_1_1(plain[name])), name


def _shape(documents: list[Any]) -> Any:
    """The structure of documents; a file in a config map may be text or bytes there."""
    for document in documents:
        if document.get("kind") == "ConfigMap":
            held = {**document.get("data", {}), **document.pop("binaryData", {})}
            document["data"] = dict(sorted(held.items()))
    return hostile.shape(documents)


def _plain_names(node: Any, value: str) -> Any:
    """Data with the one key that a user may choose freely, a checkpoint's name, made plain."""
    if isinstance(node, dict):
        return {
            key.replace(value, "plain"): _plain_names(each, value) for key, each in node.items()
        }
    return [_plain_names(each, value) for each in node] if isinstance(node, list) else node


@every_text
def test_json_keeps_its_structure(value: str, rendered: Render) -> None:
    plain = hostile.files(rendered("plain").folder, ".json")
    for name, text in hostile.files(rendered(value).folder, ".json").items():
        if name != "manifest.json":  # holds the digests of all others
            found = _plain_names(json.loads(text), value)
            assert hostile.shape(found) == hostile.shape(json.loads(plain[name])), name


@every_text
def test_pages_keep_their_elements(value: str, rendered: Render) -> None:
    plain = hostile.files(rendered("plain").folder, ".html", ".md")
    found = hostile.files(rendered(value).folder, ".html", ".md")
    assert {"handoff/runbook.html", "handoff/runbook.md"} <= found.keys()
    for name, text in found.items():
        read = hostile.html_tags if name.endswith(".html") else hostile.markdown_blocks
        assert read(text) == read(plain[name]), name


@every_text
def test_jobs_and_routers_keep_their_lines(value: str, rendered: Render) -> None:
    """None of these holds a text of a user that could be anything."""
    plain = hostile.files(rendered("plain").folder, ".sbatch", ".cfg", ".sh", ".pbtxt")
    found = hostile.files(rendered(value).folder, ".sbatch", ".cfg", ".sh", ".pbtxt")
    assert any(name.endswith(".sbatch") for name in found)
    for name, text in found.items():
        if not name.endswith("serve.sh"):  # test_a_shell_runs_none_of_it
            assert text == plain[name], name


@every_text
def test_rules_of_alerts_hold_no_text_of_a_user(value: str, rendered: Render) -> None:
    folders = [rendered(each).folder / "monitoring" for each in ("plain", value)]
    plain, found = ({p.name: p.read_bytes() for p in folder.rglob("*.yml")} for folder in folders)
    assert found == plain


def test_a_folder_may_have_any_name(tmp_path: Path, make_miniature: Callable[[str], Path]) -> None:
    """The checkpoint's, where the name comes from the file system."""
    folder = tmp_path / f"a $(touch {CANARY}) `touch {CANARY}` '\" # {{{{ x }}}} <b> é\n- b: c"
    shutil.copytree(make_miniature("llama-tiny"), folder)
    bundle = pipeline.render(
        "llama-tiny", tmp_path / "bundle", [f"checkpoint={json.dumps(str(folder))}"]
    )
    (tmp_path / "run").mkdir()
    called = run(bundle.folder / "trtllm_serve/serve.sh", tmp_path / "run")
    assert called["argv"][:2] == ["serve", str(folder)]
    assert not list(tmp_path.rglob(CANARY))
    for name, text in hostile.files(bundle.folder, ".yaml").items():
        assert hostile.yaml_1_1(text) == hostile.yaml_1_2(text), name


def test_ten_thousand_names_reach_no_shell(tmp_path: Path) -> None:
    """Each as the value of a variable, by the part that all start scripts share."""
    names = [name for name in hostile.names(COUNT) if "\0" not in name]
    variables = {f"V{index}": name for index, name in enumerate(names)}
    text = render.text(
        "_shared/environment.sh.j2",
        nodes=1,
        instances=1,
        environment=variables,
        engine_environment={},
    )
    show = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    (tmp_path / "script.sh").write_text(f"set -euo pipefail\n{text}\n{show}\n")
    done = subprocess.run(
        ["bash", "script.sh"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert {key: found[key] for key in variables} == variables
    assert [path.name for path in tmp_path.iterdir()] == ["script.sh"]


def test_ten_thousand_names_change_no_structure_of_yaml() -> None:
    """Half of them as values and half as keys, by the one writer of manifests."""
    names = hostile.names(COUNT)
    document = {"list": names[::2], "map": dict.fromkeys(names[1::2], "x"), "last": 1}
    text = yaml_document("\n".join(names), document).data.decode()
    assert hostile.yaml_1_1(text) == [document] == hostile.yaml_1_2(text)


def test_a_thousand_notes_change_no_structure_of_the_request(tmp_path: Path) -> None:
    names = [*AMBIGUOUS, *hostile.names(1_000)]
    request = hostile.request("plain", "plain")
    request |= {"notes": names, "targets": {"trtllm_serve": {}}}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(request))
    bundle = pipeline.render(str(tmp_path / "d.yaml"), tmp_path / "bundle")
    text = (bundle.folder / "deployment.yaml").read_text()
    (one,), (two,) = hostile.yaml_1_1(text), hostile.yaml_1_2(text)
    assert one["notes"] == names == two["notes"]
    assert one == two


@pytest.mark.parametrize("name", [name for name in hostile.names(400) if "\0" not in name][::32])
def test_a_fuzzed_name_renders_all_targets_or_none(name: str, tmp_path: Path) -> None:
    """What is refused as a name of a deployment leaves nothing; what is taken changes no shape."""
    document = {**hostile.request("plain", "plain"), "name": name}
    (tmp_path / "d.json").write_text(json.dumps(document))
    try:
        bundle = pipeline.render(str(tmp_path / "d.json"), tmp_path / "bundle")
    except BadInput as fault:
        assert any("name" in problem.path for problem in fault.diagnostics)
        assert [path.name for path in tmp_path.iterdir()] == ["d.json"]
        return
    for path, text in hostile.files(bundle.folder, ".yaml", ".yml").items():
        assert hostile.yaml_1_1(text) == hostile.yaml_1_2(text), path
    assert not list(tmp_path.rglob(CANARY))


@pytest.mark.parametrize("name", ["on", "null", "0o17", "1e3"])
def test_a_name_that_reads_as_something_else_stays_a_name(
    name: str, rendered: Render, tmp_path: Path
) -> None:
    document = {**hostile.request("plain", "plain"), "name": name}
    (tmp_path / "d.json").write_text(json.dumps(document))
    bundle = pipeline.render(str(tmp_path / "d.json"), tmp_path / "bundle")
    meant = hostile.files(rendered("plain").folder, ".yaml", ".yml")
    for path, text in hostile.files(bundle.folder, ".yaml", ".yml").items():
        documents = hostile.yaml_1_1(text)
        assert documents == hostile.yaml_1_2(text), path
        if not path.startswith("handoff/ci"):  # a folder of that name is a key there
            assert hostile.shape(documents) == hostile.shape(hostile.yaml_1_1(meant[path])), path


@pytest.mark.parametrize("name", ["tensorrt_llm", "0", "a" * 128, "_x", "A.b-c_d"])
def test_a_model_name_is_one_field_of_its_configuration(name: str, tmp_path: Path) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "b", [f"targets.triton.model_name='{name}'"])
    text = (bundle.folder / f"triton/model_repository/{name}/config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    usual = pipeline.render("llama-tiny", tmp_path / "usual").folder / "triton/model_repository"
    text = (usual / "tensorrt_llm/config.pbtxt").read_text()
    assert config == text_format.Parse(text, model_config_pb2.ModelConfig())


def test_yaml_of_the_engine_is_read_back_by_its_own_reader(rendered: Render) -> None:
    """Where a hostile text is an option, its file says that and no more."""
    path = rendered(HOSTILE["yaml"]).folder / "trtllm_serve/config.yaml"
    options = yaml.safe_load(path.read_text())
    assert f"draft {HOSTILE['yaml']}" in options["speculative_config"].values()
    assert "trust_remote_code" not in options
