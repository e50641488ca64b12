"""What Docker runs containers with in tests: runc, and what the machine lacks for it.

As the runtime of NVIDIA's container toolkit, it brings files of the machine into each container:
the folders in `CONTAINER_SHOWS`, which hold the programs that the image has not. A limit that this
machine may not set stays as it is.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

SHOWS = "CONTAINER_SHOWS"
NO_LIMIT = 2**64 - 1


def main(arguments: list[str]) -> None:
    for option, value in itertools.pairwise(arguments):
        if option == "--bundle":
            file = Path(value) / "config.json"
            container = json.loads(file.read_text())
            container["mounts"] += map(_mount, os.environ[SHOWS].split(os.pathsep))
            _limit(container["process"])
            file.write_text(json.dumps(container))
        elif option == "--process":  # one more process in a container: its probe
            process = json.loads(Path(value).read_text())
            _limit(process)
            Path(value).write_text(json.dumps(process))
    os.execvp("runc", ["runc", *arguments])


def _mount(folder: str) -> dict[str, Any]:
    return {"type": "bind", "source": folder, "destination": folder, "options": ["rbind", "ro"]}


def _limit(process: dict[str, Any]) -> None:
    for row in process.get("rlimits", []):
        kind = getattr(resource, row["type"])
        soft, hard = (-1 if row[end] == NO_LIMIT else row[end] for end in ("soft", "hard"))
        try:
            resource.setrlimit(kind, (soft, hard))
        except ValueError:
            soft, hard = resource.getrlimit(kind)
            row["soft"], row["hard"] = soft % (NO_LIMIT + 1), hard % (NO_LIMIT + 1)


if __name__ == "__main__":
    main(sys.argv[1:])
