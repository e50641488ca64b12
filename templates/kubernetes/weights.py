"""Fetches a checkpoint from the Hugging Face hub into a folder, and compares it with its digests.

    weights.py REPOSITORY REVISION FOLDER

A start after a stop goes on where the last one was. A file that differs from the digest that the
hub has of it is removed, so that the next start fetches it again.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download


def main(repository: str, revision: str, folder: str) -> int:
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    print(f"{repository} at {info.sha}", flush=True)
    snapshot_download(repository, revision=info.sha, local_dir=folder)
    wrong = 0
    for row in info.siblings or ():
        wanted = row.lfs.sha256 if row.lfs else None
        path = Path(folder) / row.rfilename
        if wanted and digest(path) != wanted:
            print(f"{row.rfilename}: differs from its digest {wanted}; removed", flush=True)
            path.unlink()
            wrong += 1
    print(f"{wrong} of {len(info.siblings or ())} files differ", flush=True)
    return 1 if wrong else 0


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
