"""`verify`: one changed byte anywhere in a bundle is found, and named where it can be known."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from builder import bundle as bundles
from builder import pipeline, verification
from builder.bundle import MANIFEST, MAX_TOTAL_BYTES, SIGNATURE, SUMS, File
from builder.verification import Corruption, Verification
from tests.conftest import Run
from tests.tables import by_table

PRESET = "llama-tiny"
SAMPLES = 4  # positions of each file


@pytest.fixture(scope="module")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with evidence, whose request says everything that `render` needs."""
    folder = tmp_path_factory.mktemp("handed-over") / "bundle"
    found = pipeline.render(PRESET, folder, more_targets=["handoff"])
    run = {"bundle": {"digest": found.digest}, "target": "triton"}
    bundles.attach(
        found, {"triton/run.json": bundles.to_json(run), "triton/bench.json": b'{"points": []}\n'}
    )
    return folder


@pytest.fixture
def bundle(handed_over: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return shutil.copytree(handed_over, tmp_path / "bundle")


@pytest.fixture
def made_once(handed_over: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering again gives the same bytes every time, so that thousands of checks share one."""
    files = pipeline.render_again(handed_over)

    def again(folder: Path, with_facts: bool = True) -> Mapping[str, File]:
        return files

    monkeypatch.setattr(pipeline, "render_again", again)


def damage_of(bundle: Path) -> list[Corruption]:
    return verification.verify(bundle).damage


def flips(bundle: Path, path: str, count: int = SAMPLES) -> Iterator[tuple[int, int, Verification]]:
    """A file with one bit changed at one place after the other: the place, the byte, the report."""
    whole = (bundle / path).read_bytes()
    step = max(1, len(whole) // count)
    for offset in {*range(0, len(whole), step), len(whole) - 1}:
        changed = bytes((whole[offset] ^ 1 << offset % 8,))
        (bundle / path).write_bytes(whole[:offset] + changed + whole[offset + 1 :])
        yield offset, whole[offset], verification.verify(bundle)
    (bundle / path).write_bytes(whole)


def named(report: Verification) -> list[tuple[str, tuple[int, int | None] | None]]:
    """Every corrupted file, with the place and what should be there."""
    return [
        (row.file, (row.difference.offset, row.difference.expected) if row.difference else None)
        for row in report.damage
    ]


def wrongly_named(bundle: Path, path: str, count: int = SAMPLES) -> list[int]:
    """The places at which a changed byte was not named as the only damage."""
    found = flips(bundle, path, count)
    return [offset for offset, value, report in found if named(report) != [(path, (offset, value))]]


def test_an_untouched_bundle_is_intact(handed_over: Path) -> None:
    report = verification.verify(handed_over)
    assert not report.damage
    assert report.evidence == 2
    assert report.digest == bundles.read(handed_over).digest
    assert report.rendered == len(bundles.read(handed_over).manifest["files"])


@pytest.mark.usefixtures("made_once")
def test_a_changed_byte_of_any_rendered_file_is_named(bundle: Path) -> None:
    paths = [*bundles.read(bundle).manifest["files"], MANIFEST]
    inputs = set(verification.INPUTS)
    assert {path: wrongly_named(bundle, path) for path in paths if path not in inputs} == {
        path: [] for path in paths if path not in inputs
    }


@pytest.mark.usefixtures("made_once")
def test_a_changed_byte_of_the_list_is_found(bundle: Path) -> None:
    """What it says of evidence stands nowhere else, so that the evidence may be blamed."""
    text = (bundle / SUMS).read_text()
    evidence = range(text.index("\n", text.index("deployment.yaml")), text.index("handoff/"))
    reports = list(flips(bundle, SUMS, 50))
    assert all(report.damage for _, _, report in reports)
    assert {
        offset for offset, value, report in reports if named(report) != [(SUMS, (offset, value))]
    } <= set(evidence)


@pytest.mark.parametrize("path", ["deployment.yaml", "checkpoint.json"])
def test_a_changed_byte_of_the_request_or_the_facts_is_found(bundle: Path, path: str) -> None:
    """The file is named, whether or not its bytes can be rendered again."""
    for _, _, report in flips(bundle, path, 2):
        assert [row.file for row in report.damage] == [path]


@pytest.mark.usefixtures("made_once")
def test_a_changed_byte_of_evidence_is_found(bundle: Path) -> None:
    for path in ("evidence/triton/run.json", "evidence/triton/bench.json"):
        for _, _, report in flips(bundle, path):
            assert [row.file for row in report.damage] == [path]


def test_facts_of_a_folder_that_is_gone_name_the_byte(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    """The checkpoint is on the machine that rendered, and not on the one that verifies."""
    checkpoint = shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "weights")
    change = f"checkpoint={checkpoint}"
    folder = tmp_path / "bundle"
    pipeline.render("deepseek-v3.2-nvfp4-gb200", folder, [change], more_targets=["handoff"])
    shutil.rmtree(checkpoint)
    for path in ("trtllm_serve/serve.sh", "handoff/sbom.cdx.json", "manifest.json"):
        assert wrongly_named(folder, path, 2) == []


def test_the_first_of_several_bytes_is_named(bundle: Path, builder: Run) -> None:
    script = bundle / "triton" / "serve.sh"
    lines = script.read_text().splitlines(keepends=True)
    lines[2] = f"X{lines[2][1:]}"
    lines[5] = "# mine\n"
    script.write_text("".join(lines))
    done = builder("verify", bundle)
    assert done.returncode == 4
    offset = len("".join(lines[:2]))
    assert f'first at byte {offset}, line 3 column 1: "X", expected "' in done.stderr


@pytest.mark.parametrize("cut", [True, False])
def test_a_file_that_ends_elsewhere_is_named(cut: bool, bundle: Path) -> None:
    file = bundle / "launch.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] if cut else whole + b"x")
    (row,) = damage_of(bundle)
    assert row.difference
    assert row.difference.offset == (len(whole) - 5 if cut else len(whole))
    assert (row.difference.found is None) == cut
    assert "the end" in str(row.difference)


def test_where_it_cannot_be_rendered_again_the_file_is_named(bundle: Path) -> None:
    for path in ("launch.json", "deployment.yaml"):
        (bundle / path).write_bytes((bundle / path).read_bytes().replace(b"l", b"L", 2))
    assert [(row.file, row.difference) for row in damage_of(bundle)] == [
        ("deployment.yaml", None),
        ("launch.json", None),
    ]


@by_table
def test_a_file_too_many_too_few_or_of_another_mode_is_found(
    path: str, what: str, bundle: Path
) -> None:
    if what == "is missing":
        (bundle / path).unlink()
    elif what == "must have mode 644":
        (bundle / path).chmod(0o755)
    else:
        (bundle / path).parent.mkdir(parents=True, exist_ok=True)
        (bundle / path).write_text("mine")
    assert [(row.file, row.message) for row in damage_of(bundle)] == [(path, what)]


def test_a_file_that_is_too_large_is_not_read(bundle: Path) -> None:
    with (bundle / "weights.bin").open("wb") as file:
        file.truncate(MAX_TOTAL_BYTES + 1)
    assert [row.message for row in damage_of(bundle)] == ["is too large for a bundle"]


@pytest.mark.parametrize("path", ["launch.json", "triton", "evidence"])
def test_a_link_is_no_part_of_a_bundle(path: str, bundle: Path) -> None:
    """Not even one to the same content: it is another one tomorrow."""
    elsewhere = (bundle / path).rename(bundle.parent / "elsewhere")
    (bundle / path).symlink_to(elsewhere)
    assert (path, "is a link") in [(row.file, row.message) for row in damage_of(bundle)]


def test_evidence_of_another_bundle_is_found(bundle: Path) -> None:
    found = bundles.read(bundle)
    bundles.attach(found, {"run.json": b'{"bundle": {"digest": "0"}}'})
    (row,) = damage_of(bundle)
    assert (row.file, row.message) == ("evidence/run.json", "is of another bundle, of digest 0")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("launch.json", "has another digest of launch.json"),
        ("handoff/sbom.cdx.json", "is not a bill of materials"),
    ],
)
def test_a_bill_of_materials_of_other_files_is_found(path: str, what: str, bundle: Path) -> None:
    """Someone may make all digests anew, but for those in the bill."""
    forge(bundle, path, b"{}")
    (found,) = damage_of(bundle)
    assert what in found.message


def test_forged_facts_are_no_bug(bundle: Path) -> None:
    forge(bundle, "checkpoint.json", b'{"draft": {}, "config": {}}')
    (bundle / "launch.json").write_text("{}")
    assert {row.file for row in damage_of(bundle)} == {"launch.json"}


def forge(bundle: Path, path: str, data: bytes) -> None:
    """Change a file, and all digests of it but those in the bill of materials."""
    (bundle / path).write_bytes(data)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["files"][path] |= {"sha256": File(data).sha256, "bytes": len(data)}
    (bundle / "manifest.json").write_bytes(bundles.to_json(manifest))
    shutil.rmtree(bundle / "evidence")
    (bundle / "SHA256SUMS").unlink()
    paths = [path for path in bundle.rglob("*") if path.is_file()]
    digests = {str(path.relative_to(bundle)): File(path.read_bytes()).sha256 for path in paths}
    (bundle / "SHA256SUMS").write_bytes(bundles.sums(digests))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
    subprocess.run(command, check=True)
    return tmp_path / "key"


def test_a_signed_bundle_tells_its_signer(bundle: Path, key: Path, builder: Run) -> None:
    signers = bundle.parent / "signers"
    signers.write_text(f"release@example {key.with_suffix('.pub').read_text()}")
    assert "signature: none" in builder("verify", bundle).stdout
    whole = (bundle / "launch.json").read_bytes()
    (bundle / "launch.json").write_text("{}")
    done = builder("sign", bundle, "--key", key)
    assert (done.returncode, (bundle / SIGNATURE).exists()) == (4, False), "it is damaged"
    assert "launch.json: differs from the manifest" in done.stderr
    (bundle / "launch.json").write_bytes(whole)
    assert builder("sign", bundle, "--key", key).returncode == 0
    assert "owner not checked" in builder("verify", bundle).stdout
    done = builder("verify", bundle, "--signers", signers)
    assert done.returncode == 0
    assert "signature: by release@example, key SHA256:" in done.stdout
    done = builder("verify", bundle, "--signers", signers, "--identity", "root@example")
    assert done.returncode == 4
    assert "SHA256SUMS.sig: was made with key SHA256:" in done.stderr
    assert builder("sign", bundle, "--key", key).returncode == 0, "it is signed again"


def test_signers_want_a_signature(bundle: Path, key: Path, builder: Run) -> None:
    done = builder("verify", bundle, "--signers", key.with_suffix(".pub"))
    assert done.returncode == 4
    assert "SHA256SUMS.sig: is missing: the bundle is not signed" in done.stderr
    done = builder("verify", bundle, "--signers", bundle / "none")
    assert done.returncode == 2
    assert "none: cannot be read" in done.stderr


@pytest.mark.usefixtures("made_once")
def test_a_list_that_was_made_again_has_lost_its_signature(bundle: Path, key: Path) -> None:
    verification.sign(bundle, key)
    signature = (bundle / SIGNATURE).read_bytes()
    bundles.attach(bundles.read(bundle), {"run.json": b"{}"})
    (bundle / SIGNATURE).write_bytes(signature)
    (row,) = damage_of(bundle)
    assert row.file == SIGNATURE
    assert "is not a signature of these bytes" in row.message


def test_json_says_all_of_it(bundle: Path, builder: Run) -> None:
    done = builder("verify", bundle, "--json")
    found = json.loads(done.stdout)
    assert found["intact"]
    assert found["damage"] == []
    assert found["signer"] is None
    file = bundle / "launch.json"
    file.write_bytes(b"[" + file.read_bytes()[1:])
    done = builder("verify", bundle, "--json")
    assert done.returncode == 4
    (row,) = json.loads(done.stdout)["damage"]
    assert row["file"] == "launch.json"
    assert row["place"] == {
        "offset": 0,
        "line": 1,
        "column": 1,
        "found": ord("["),
        "expected": ord("{"),
    }
