"""The scripts of the Job that fills the claim of a checkpoint; the hub and S3 are stand-ins."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.bundle import sums
from tests.conftest import ROOT

# Each file is fetched once, the first time with a fault.
HUB = """\
import hashlib
from pathlib import Path
from types import SimpleNamespace as Row

class HfApi:
    def model_info(self, repository, revision, files_metadata):
        assert (repository, revision, files_metadata) == ("owner/name", "main", True)
        lfs = Row(sha256=hashlib.sha256(b"right").hexdigest())
        weights = Row(rfilename="a/model.safetensors", lfs=lfs)
        return Row(sha="c0ffee", siblings=[weights, Row(rfilename="config.json", lfs=None)])

def snapshot_download(repository, revision, local_dir):
    assert revision == "c0ffee"
    folder = Path(local_dir) / "a"
    text = "right" if folder.exists() else "wrong"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.safetensors").exists():
        (folder / "model.safetensors").write_text(text)
    (folder.parent / "config.json").write_text("{}")
"""
# Likewise; `cp` copies the digests if the store has some.
AWS = """\
#!/bin/sh
set -eu
for last; do :; done
[ "$2" = sync ] || exec cp "$STORE/SHA256SUMS" "$last"
text=right
[ -d "$last/a" ] || text=wrong
mkdir -p "$last/a"
[ -e "$last/a/model.safetensors" ] || printf %s "$text" >"$last/a/model.safetensors"
"""
MODEL = "a/model.safetensors"
SUMS = sums({MODEL: hashlib.sha256(b"right").hexdigest()})


@pytest.mark.parametrize("source", ["hub", "S3, known digests", "S3, digests in S3"])
def test_a_file_that_differs_from_its_digest_is_fetched_again(source: str, tmp_path: Path) -> None:
    folder, own = tmp_path / "to", tmp_path / "own"
    folder.mkdir()
    (own / "store").mkdir(parents=True)
    (own / "huggingface_hub.py").write_text(HUB)
    (own / "aws").write_text(AWS)
    (own / "aws").chmod(0o755)
    (own / "store/SHA256SUMS").write_bytes(SUMS if source.endswith("in S3") else b"broken")
    (own / "known").write_bytes(SUMS)
    scripts = ROOT / "templates/kubernetes"
    command = [sys.executable, str(scripts / "weights.py"), "owner/name", "main", str(folder)]
    if source != "hub":
        known = [] if source.endswith("in S3") else [str(own / "known")]
        command = ["sh", str(scripts / "weights_s3.sh"), "s3://b/m", str(folder), *known]
    paths = {"PYTHONPATH": str(own), "PATH": f"{own}:{os.environ['PATH']}"}
    environment = {**os.environ, **paths, "STORE": str(own / "store")}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    first = run()
    assert first.returncode == 1
    assert f"{MODEL}: differs from its digest" in first.stdout, first.stderr
    assert not (folder / MODEL).exists()
    second = run()
    assert second.returncode == 0, second.stderr
    assert (folder / MODEL).read_text() == "right"
    assert second.stdout.splitlines()[-1].startswith(("0 of 2 files differ", "all files of"))
    if source.endswith("in S3"):
        (own / "store/SHA256SUMS").write_bytes(b"broken")
        assert run().returncode == 1
        (own / "store/SHA256SUMS").unlink()
        assert "no digests: run sha256sum on the files" in run().stdout
