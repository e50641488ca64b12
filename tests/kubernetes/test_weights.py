"""The script of the Job that fills the claim of a checkpoint, with a stand-in for the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_file_that_differs_from_its_digest_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "huggingface_hub.py").write_text(HUB)
    script = ROOT / "templates/kubernetes/weights.py"
    command = [sys.executable, str(script), "owner/name", "main", str(tmp_path / "to")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    first = run()
    assert first.returncode == 1
    assert "a/model.safetensors: differs from its digest" in first.stdout, first.stderr
    assert not (tmp_path / "to/a/model.safetensors").exists()
    second = run()
    assert (second.returncode, second.stdout.splitlines()[-1]) == (0, "0 of 2 files differ")
    assert (tmp_path / "to/a/model.safetensors").read_text() == "right"
