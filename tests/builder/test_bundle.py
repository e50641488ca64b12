"""Bundles on disk: complete or absent, verified file by file, never overwritten by accident."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder import bundle as bundles
from builder.bundle import EVIDENCE, SUMS, File
from builder.errors import BadInput
from tests.conftest import Run
from tests.tables import by_table

PRESET = "deepseek-v3.2-nvfp4-gb200"


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from builder import pipeline

    return pipeline.render(PRESET, tmp_path_factory.mktemp("rendered") / "bundle").folder


@pytest.fixture
def bundle(rendered: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return shutil.copytree(rendered, tmp_path / "bundle")


def test_every_kind_of_damage_is_listed_at_once(bundle: Path, builder: Run) -> None:
    whole = builder("verify", bundle)
    assert (whole.returncode, "files match, digest " in whole.stdout) == (0, True)
    (bundle / "launch.json").unlink()
    (bundle / "notes.txt").write_text("mine")
    (bundle / "triton" / "serve.sh").chmod(0o644)
    config = bundle / "trtllm_serve" / "config.yaml"
    config.write_text(config.read_text().replace("64", "65", 1))
    done = builder("verify", bundle)
    assert done.returncode == 4
    first, *rest = done.stderr.splitlines()
    assert first == "error: notes.txt: is not in the manifest; remove it, or render again"
    assert "error: launch.json: is missing; render again, or restore the file" in rest
    assert "error: triton/serve.sh: must have mode 755; use chmod" in rest
    assert any(
        row.startswith("error: trtllm_serve/config.yaml: differs from the manifest") for row in rest
    )


@by_table
def test_a_folder_whose_manifest_cannot_be_read_is_refused(
    manifest: str | None, verb: str, code: int, words: str, tmp_path: Path, builder: Run
) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    done = builder(verb, tmp_path)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


def test_rendering_again_replaces_an_unchanged_bundle(bundle: Path, builder: Run) -> None:
    before = (bundle / "manifest.json").read_bytes()
    assert builder("render", PRESET, "-o", bundle).returncode == 0
    assert (bundle / "manifest.json").read_bytes() == before
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_a_bundle_changed_by_hand_is_kept(bundle: Path, builder: Run) -> None:
    config = bundle / "trtllm_serve" / "config.yaml"
    config.write_text("# mine\n")
    done = builder("render", PRESET, "-o", bundle)
    assert done.returncode == 2
    assert "was changed by hand (trtllm_serve/config.yaml)" in done.stderr
    assert config.read_text() == "# mine\n"
    assert builder("render", PRESET, "-o", bundle, "--force").returncode == 0


@pytest.mark.parametrize("name", ["evidence/run/bench.json", "SHA256SUMS.sig"])
def test_what_was_added_to_a_bundle_is_kept(name: str, bundle: Path, builder: Run) -> None:
    (bundle / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle / name).write_text("{}")
    done = builder("render", PRESET, "-o", bundle)
    assert done.returncode == 2
    assert f"holds a bundle with {name.partition('/')[0]}" in done.stderr
    assert (bundle / name).exists()


@by_table
def test_a_place_that_is_not_a_bundle_is_kept(
    made: str, output: str, words: str, tmp_path: Path, builder: Run
) -> None:
    (tmp_path / made).parent.mkdir(exist_ok=True)
    (tmp_path / made).write_text("years of work")
    done = builder("render", PRESET, "-o", output)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert (tmp_path / made).read_text() == "years of work"
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()] == [made]


def test_the_manifest_tells_where_everything_comes_from(rendered: Path) -> None:
    manifest = json.loads((rendered / "manifest.json").read_text())
    assert manifest["engine"] == {"name": "tensorrt_llm", "release": "1.2.1"}
    assert manifest["inputs"]["checkpoint"]["name"] == "nvidia/DeepSeek-V3.2-NVFP4"
    assert {
        path for path in manifest["inputs"]["files"] if not path.startswith("data/heuristics/")
    } == {
        "data/advisories/tensorrt_llm.yaml",
        "data/advisories/triton.yaml",
        "data/defects/tensorrt_llm.yaml",
        "data/defects/triton.yaml",
        "data/measurements/aggregated.csv",
        "data/measurements/factors.json",
        "data/measurements/models.yaml",
        "data/models/deepseek-v3.2-nvfp4.yaml",
        "data/hardware/gb200.yaml",
        "data/releases/1.2.1.json",
        "data/results/microsoft-nvidia-2026-02.yaml",
        "data/rules.yaml",
    }
    files = {str(p.relative_to(rendered)) for p in rendered.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json", "SHA256SUMS"}


def test_coreutils_alone_verify_a_bundle(rendered: Path) -> None:
    command = ["sha256sum", "--strict", "--check", "SHA256SUMS"]
    done = subprocess.run(command, cwd=rendered, capture_output=True, text=True, check=True)
    listed = {line.rpartition(": ")[0] for line in done.stdout.splitlines()}
    files = {str(p.relative_to(rendered)) for p in rendered.rglob("*") if p.is_file()}
    assert listed == files - {"SHA256SUMS"}


@pytest.mark.parametrize(
    "name", ["plain.txt", "two words", "a\nb", "back\\slash", "c\rd", "\u00e4"]
)
def test_any_file_name_survives_the_list_of_digests(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    written = bundles.sums({name: digest})
    assert bundles.read_sums(written) == {name: digest}
    command = ["sha256sum", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == written


@pytest.mark.parametrize("package", ["1", "1/trtllm_model"])
def test_compiled_python_in_a_bundle_is_found(bundle: Path, builder: Run, package: str) -> None:
    folder = bundle / "triton/model_repository/tensorrt_llm" / package
    planted = folder / "__pycache__/model.cpython-311.pyc"
    planted.parent.unlink()  # the file that keeps bytecode out
    planted.parent.mkdir()
    planted.write_bytes(b"")
    assert "model.cpython-311.pyc: is not in the manifest" in builder("verify", bundle).stderr


def test_folders_can_be_read_by_a_container_of_another_user(tmp_path: Path) -> None:
    command = f"umask 077; {sys.executable} -m builder render {PRESET} -o bundle"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    folders = [path for path in (tmp_path / "bundle").rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o755}


def test_many_writers_of_one_folder_leave_one_whole_bundle(tmp_path: Path, builder: Run) -> None:
    command = [sys.executable, "-m", "builder", "render", PRESET, "-o", "bundle"]
    writers = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert builder("verify", "bundle").returncode == 0


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_file", [False, True])
def test_what_was_there_comes_back_where_the_new_bundle_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, is_file: bool
) -> None:
    folder = tmp_path / "b"
    if is_file:
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "mine").write_text("mine")
    refuse_last_rename(monkeypatch, folder, fault)
    with pytest.raises(BadInput if isinstance(fault, OSError) else KeyboardInterrupt):
        bundles.write(folder, {"new": File(b"new")}, FACTS, force=True)
    assert (folder if is_file else folder / "mine").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [folder]


def test_evidence_comes_back_where_the_new_cannot_take_its_place(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bundles.read(bundle)
    bundles.attach(found, {"run.json": b"{}"})
    before = (bundle / SUMS).read_bytes()
    for path in (bundle / EVIDENCE, bundle / SUMS):
        with monkeypatch.context() as patch:
            refuse_last_rename(patch, path, OSError(errno.ENOSPC, "no space"))
            with pytest.raises(BadInput, match="no space"):
                bundles.attach(found, {"other.json": b"[]"})
        assert [one.name for one in (bundle / EVIDENCE).iterdir()] == ["run.json"]
        assert (bundle / SUMS).read_bytes() == before
        assert list(bundle.parent.iterdir()) == [bundle]


FACTS: dict[str, Any] = {key: [] if key == "decisions" else {} for key in bundles.REQUIRED}


def refuse_last_rename(monkeypatch: pytest.MonkeyPatch, target: Path, fault: BaseException) -> None:
    """The new one does not get that name; the one that was there does."""
    for name in ("rename", "replace"):
        real, refused = getattr(Path, name), list[Path]()

        def move(self: Path, to: Path, real: Any = real, refused: list[Path] = refused) -> Path:
            if to == target and not refused:
                refused.append(self)
                raise fault
            moved: Path = real(self, to)
            return moved

        monkeypatch.setattr(Path, name, move)


def test_a_folder_that_another_writes_below_is_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "_locks", lambda _: False)
    monkeypatch.setattr(bundles, "LOCK_S", 0.0)
    with pytest.raises(BadInput, match="another process holds its lock; try again"):
        bundles.write(tmp_path / "b", {}, {}, force=False)
