"""`builder pin` against a real registry on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from builder import bundle, pipeline
from builder.errors import BadFacts
from builder.upgrade import pinning
from tests import prefork
from tests.conftest import ROOT

UNPACKED = ROOT / ".venv" / "registry" / "usr" / "bin"
SEARCH = os.pathsep.join([str(UNPACKED), os.environ.get("PATH", os.defpath)])
REPOSITORY = "nvidia/tensorrt-llm/release"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")
DEPLOYMENT = """\
# Ours.
name: ours
checkpoint: nvidia/DeepSeek-V3.2-NVFP4
hardware: {{gpu: {gpu}, num_gpus: 4}}  # one node
engine: {{release: 1.2.1}}
workload: {{isl: 800, osl: 1600, concurrency: 64}}
targets: [trtllm_serve]
images:
  # from the mirror
  trtllm_serve: {image}  # checked by us
"""
Pin = Callable[..., "subprocess.CompletedProcess[str]"]


class Registry:
    """An address, and the digests of what was put there by tag."""

    def __init__(self, address: str) -> None:
        self.address, self.digests = address, dict[str, str]()

    def image(self, tag: str) -> str:
        return f"{self.address}/{REPOSITORY}:{tag}"

    def put(self, tag: str, kind: str, document: dict[str, object]) -> dict[str, object]:
        data = json.dumps(document, indent=1).encode()
        url = f"http://{self.address}/v2/{REPOSITORY}/manifests/{tag}"
        httpx.put(url, content=data, headers={"content-type": kind}).raise_for_status()
        self.digests[tag] = _digest(data)
        return {"mediaType": kind, "digest": _digest(data), "size": len(data)}

    def put_image(self, tag: str, architecture: str) -> dict[str, object]:
        """An image of one platform, and its row in an index."""
        config = json.dumps({"architecture": architecture, "os": "linux", "rootfs": {}}).encode()
        begun = httpx.post(f"http://{self.address}/v2/{REPOSITORY}/blobs/uploads/")
        place = httpx.URL(begun.headers["location"]).copy_add_param("digest", _digest(config))
        httpx.put(place, content=config).raise_for_status()
        blob = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": _digest(config)}
        document = {"schemaVersion": 2, "config": {**blob, "size": len(config)}, "layers": []}
        row = self.put(tag, MANIFEST, {**document, "mediaType": MANIFEST})
        return {**row, "platform": {"architecture": architecture, "os": "linux"}}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with an index of both platforms, and an image of each alone."""
    program = shutil.which("docker-registry", path=SEARCH)
    if program is None or not shutil.which("skopeo", path=SEARCH):
        pytest.skip("no docker-registry or skopeo; tests/run.sh unpacks Debian's")
    folder = tmp_path_factory.mktemp("registry")
    storage = {"filesystem": {"rootdirectory": str(folder / "data")}}
    document = {"version": 0.1, "storage": storage, "http": {"addr": "127.0.0.1:0"}}
    (folder / "config.yml").write_text(yaml.safe_dump(document))
    command = [program, "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = (LISTENING.search(line) for line in process.stderr)
        found = Registry(next(filter(None, lines))[1])
        both = [found.put_image(name, name) for name in ("amd64", "arm64")]
        found.put("1.2.1", INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": both})
        yield found
        process.terminate()
        process.stderr.close()


@pytest.fixture
def pin(registry: Registry, tmp_path: Path) -> Pin:
    """`builder pin` in a folder, with only the named programs at hand, and no TLS here."""
    settings = tmp_path / "home" / ".config" / "containers" / "registries.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')

    def run(*arguments: object, programs: Path | None = None) -> subprocess.CompletedProcess[str]:
        path = programs or only(tmp_path / "bin", skopeo=None)
        environment = {"HOME": str(tmp_path / "home"), "PATH": str(path)}
        order = ["pin", *map(str, arguments)]
        return prefork.shared().run(order, tmp_path, environment=environment).done

    return run


def only(folder: Path, **programs: str | None) -> Path:
    """A folder with these programs alone: real ones, or stand-ins with this script."""
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        if script is None:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(shutil.which(name, path=SEARCH) or "/nowhere")
        else:
            (folder / name).write_text(
                f"#!/bin/bash\nskopeo={shutil.which('skopeo', path=SEARCH)}\n{script}"
            )
            (folder / name).chmod(0o755)
    return folder


def deployment(folder: Path, image: str, gpu: str = "gb200") -> Path:
    file = folder / "deployment.yaml"
    file.write_text(DEPLOYMENT.format(image=image, gpu=gpu))
    return file


def test_the_digest_of_the_index_is_written_next_to_its_tag(
    registry: Registry, pin: Pin, tmp_path: Path
) -> None:
    file = deployment(tmp_path, registry.image("1.2.1"))
    before = file.read_text()
    done = pin(file)
    pinned = f"{registry.image('1.2.1')}@{registry.digests['1.2.1']}"
    assert done.returncode == 0, done.stderr
    assert file.read_text() == before.replace(registry.image("1.2.1"), pinned)
    assert f"images.trtllm_serve: {pinned} (amd64, arm64; new)" in done.stdout
    planned = pipeline.plan(str(file))
    assert not [row for row in planned.warnings if "no digest" in row.message]

    again = pin(file)
    assert f": {pinned} (amd64, arm64; already pinned)" in again.stdout
    assert file.read_text() == before.replace(registry.image("1.2.1"), pinned)


def test_an_image_of_one_platform_has_the_digest_of_its_manifest(
    registry: Registry, pin: Pin, tmp_path: Path
) -> None:
    file = deployment(tmp_path, registry.image("arm64"))
    assert pin(file).returncode == 0
    assert f"release:arm64@{registry.digests['arm64']}  # checked by us" in file.read_text()


def test_images_of_targets_are_pinned_and_those_of_a_site_are_told(
    registry: Registry, pin: Pin, tmp_path: Path
) -> None:
    image = registry.image("1.2.1")
    file = deployment(tmp_path, image)
    site = yaml.safe_load((ROOT / "tests" / "golden" / "site.yaml").read_text())
    site["container"]["images"] = {"trtllm_serve": image.replace("/", "#", 1)}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    targets = f"""targets:
  trtllm_serve:
  handoff:
  slurm: {{site: site.yaml}}
  kubernetes: {{gateway: {{image: {registry.image("arm64")}, tls_secret: tls}}}}
"""
    file.write_text(file.read_text().replace("targets: [trtllm_serve]\n", targets))
    done = pin(file)
    assert done.returncode == 0, done.stderr
    data = yaml.safe_load(file.read_text())
    gateway = data["targets"]["kubernetes"]["gateway"]["image"]
    assert gateway == f"{registry.image('arm64')}@{registry.digests['arm64']}"
    assert f"#{REPOSITORY}:1.2.1@{registry.digests['1.2.1']} (amd64, arm64; not " in done.stdout
    assert data["targets"]["slurm"] == {"site": "site.yaml"}
    unpinned = [
        row.where for row in pipeline.plan(str(file)).warnings if "no digest" in row.message
    ]
    assert unpinned == ["targets.slurm.site.container.images.trtllm_serve"]


CRANE = """\
case $1 in
manifest)
  "$skopeo" inspect --raw "docker://$2" 2>/dev/null && exit
  echo "Error: fetching manifest $2: GET http://x/v2/: MANIFEST_UNKNOWN: manifest unknown" >&2
  exit 1 ;;
config) "$skopeo" inspect --config "docker://$2" ;;
esac
"""
BUILDX = """\
[[ "$1 $2 $3" == "buildx imagetools inspect" ]] || exit 1
case $4 in
--raw)
  "$skopeo" inspect --raw "docker://$5" 2>/dev/null && exit
  echo "ERROR: $5: not found" >&2
  exit 1 ;;
--format) "$skopeo" inspect --config "docker://$6" ;;
esac
"""


@pytest.mark.parametrize(("name", "script"), [("crane", CRANE), ("docker", BUILDX)])
@pytest.mark.parametrize("tag", ["1.2.1", "arm64"])
def test_crane_and_docker_give_the_same_digests(
    registry: Registry, pin: Pin, tmp_path: Path, name: str, script: str, tag: str
) -> None:
    """Stand-ins that print what these programs print, by their sources; the registry is real."""
    file = deployment(tmp_path, registry.image(tag))
    programs = only(tmp_path / "other", **{name: script})
    done = pin(file, programs=programs)
    assert done.returncode == 0, done.stderr
    assert f":{tag}@{registry.digests[tag]} " in file.read_text()
    deployment(tmp_path, registry.image("9.9.9"))
    assert "is not in the registry" in pin(file, programs=programs).stderr


@pytest.mark.parametrize(
    ("image", "gpu", "code", "words"),
    [
        (
            "{address}/x/y:9.9.9",
            "gb200",
            2,
            ["x/y:9.9.9 is not in the registry", "correct the name"],
        ),
        ("{one}:amd64", "gb200", 2, ["is for amd64", "name an image for arm64"]),
        ("{one}:arm64", "b200", 2, ["is for arm64", "name an image for amd64"]),
        ("{one}@{amd64}", "gb200", 2, ["is for amd64", "name an image for arm64"]),
        ("{one}@sha256:" + "0" * 64, "gb200", 2, ["is not in the registry"]),
        ("127.0.0.1:1/x/y:1", "gb200", 3, ["127.0.0.1:1 cannot be reached", "on a machine that"]),
    ],
)
def test_what_is_not_certain_is_refused_at_its_line_and_nothing_is_written(
    registry: Registry, pin: Pin, tmp_path: Path, image: str, gpu: str, code: int, words: list[str]
) -> None:
    one = f"{registry.address}/{REPOSITORY}"
    named = image.format(address=registry.address, one=one, amd64=registry.digests["amd64"])
    file = deployment(tmp_path, named, gpu)
    before = file.read_text()
    done = pin(file)
    assert done.returncode == code, done.stderr
    assert f"{file}:10: images.trtllm_serve: {named.partition(' ')[0]}" in done.stderr
    assert [word for word in words if word not in done.stderr] == []
    assert file.read_text() == before


def test_without_a_program_the_remedy_is_to_install_one(
    registry: Registry, pin: Pin, tmp_path: Path
) -> None:
    done = pin(deployment(tmp_path, registry.image("1.2.1")), programs=only(tmp_path / "none"))
    assert done.returncode == 3
    assert done.stderr == (
        "error: PATH: has none of skopeo, crane, docker, and the digests of images need one of "
        "them; install skopeo\n"
    )


@pytest.mark.parametrize(
    ("program", "said", "words"),
    [
        # Of Docker 28.2.2.
        (
            "docker",
            "docker: unknown command: docker buildx",
            "docker has no buildx; install skopeo",
        ),
        # google/go-containerregistry pkg/v1/remote/transport/error.go.
        (
            "crane",
            "Error: fetching manifest x: GET http://x/v2/: UNAUTHORIZED: authentication required",
            "without a login, or does not exist; log in first: crane auth login 127.0.0.1:",
        ),
        (
            "crane",
            "panic: something else",
            "crane failed with code 1; try crane manifest 127.0.0.1:",
        ),
    ],
)
def test_what_a_program_refuses_has_its_remedy(
    registry: Registry, pin: Pin, tmp_path: Path, program: str, said: str, words: str
) -> None:
    programs = only(tmp_path / "other", **{program: f'echo "{said}" >&2; exit 1'})
    done = pin(deployment(tmp_path, registry.image("1.2.1")), programs=programs)
    assert (done.returncode, words in done.stderr, said in done.stderr) == (3, True, True)


def test_a_bundle_stays_and_its_pinned_deployment_renders_the_same_but_for_the_image(
    registry: Registry, pin: Pin, tmp_path: Path
) -> None:
    image = registry.image("1.2.1")
    old = pipeline.render(str(deployment(tmp_path, image)), tmp_path / "bundle")
    assert "--output: is required" in pin(old.folder).stderr
    done = pin(old.folder, "-o", tmp_path / "pinned.yaml")
    assert done.returncode == 0, done.stderr
    assert f"python -m builder render {tmp_path}/pinned.yaml -o DIR" in done.stdout
    assert bundle.read(old.folder).digest == old.digest
    new = pipeline.render(str(tmp_path / "pinned.yaml"), tmp_path / "again")
    assert new.manifest["decisions"] == old.manifest["decisions"]
    named = yaml.safe_load((new.folder / "deployment.yaml").read_text())["images"]
    assert named == {"trtllm_serve": f"{image}@{registry.digests['1.2.1']}"}
    assert "exists" in pin(old.folder, "-o", tmp_path / "pinned.yaml").stderr


def test_a_deployment_file_takes_no_other_output(
    registry: Registry, pin: Pin, tmp_path: Path
) -> None:
    done = pin(deployment(tmp_path, registry.image("1.2.1")), "-o", tmp_path / "other.yaml")
    assert (done.returncode, (tmp_path / "other.yaml").exists()) == (2, False)


def test_a_registry_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "skopeo"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(pinning, "TIMEOUT_S", 0.2)
    file = deployment(tmp_path, f"registry.example/{REPOSITORY}:1.2.1")
    with pytest.raises(BadFacts, match=r"registry\.example cannot be reached") as failed:
        pinning.pin(str(file))
    assert failed.value.diagnostics[0].log == ("timed out after 0.2 s",)
