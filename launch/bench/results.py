"""The results of a benchmark on disk: `bench.json`, `points.csv` and `requests.jsonl`.

All three are valid at any time and contain what was measured so far.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.files import MAX_JSON_BYTES, parse_json, read_text, reported, write_text

from .. import run
from .request import RequestRecord

BENCH, POINTS, REQUESTS = "bench.json", "points.csv", "requests.jsonl"
FORMAT = 1
KIND = "bench"
# Parts of a point that are not single values, or are for reports only.
NOT_IN_CSV = ("samples", "server", "errors")


class Results:
    """The files of one benchmark in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._requests = (folder / REQUESTS).open(
            "w", encoding="utf-8", errors="backslashreplace", buffering=1
        )

    def close(self) -> None:
        self._requests.close()

    def request(self, label: str, one: RequestRecord) -> None:
        """A line for a request, without the arrivals of its messages."""
        measures = {
            name: value if value is None else round(value, 4)
            for name in ("ttft_ms", "tpot_ms", "e2e_ms")
            if one.ok and (value := getattr(one, name)) is not None
        }
        row = {"point": label, **one.as_json(), **measures}
        self._requests.write(json.dumps(row, ensure_ascii=False) + "\n")

    def write(self, document: Mapping[str, Any]) -> None:
        """Both files are replaced atomically: a reader never sees half of one."""
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        for name, content in ((BENCH, text), (POINTS, table(document))):
            write_text(self.folder / name, content)


def create(folder: Path | None, name: str) -> Results:
    """Results in a folder without any, or in a new one under `runs/`. Raises `BadInput`."""
    folder = folder or run.new_folder(f"{name}-bench")
    remedy = "choose another --run-dir"
    with reported(folder, "cannot hold results", remedy):
        run.make_private(folder)
        if (folder / BENCH).exists():
            raise BadInput(Diagnostic(str(folder), f"holds a {BENCH} already", remedy))
        return Results(folder)


def read(path: Path) -> Mapping[str, Any]:
    """The document of a run folder or a file. Raises `BadInput`."""
    file = path / BENCH if path.is_dir() else path
    try:
        document = parse_json(read_text(file, BadInput, MAX_JSON_BYTES))
    except ValueError as error:
        raise BadInput(Diagnostic(str(file), f"is not JSON: {error}")) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise BadInput(Diagnostic(str(file), f"is not a {BENCH} of this toolkit"))
    found = document.get("format")
    if found != FORMAT or type(found) is not int:
        what = f"has format {json.dumps(found)}; this toolkit reads {FORMAT}"
        raise BadInput(Diagnostic(str(file), what))
    return document


def table(document: Mapping[str, Any]) -> str:
    """The points as CSV: a column for each value, named by its path."""
    rows = [_about(document) | dict(flattened(point, NOT_IN_CSV)) for point in document["points"]]
    columns: dict[str, Any] = {}
    for row in rows:
        columns |= row
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """Columns about the whole run; each row repeats them, so that a single row cannot mislead."""
    subject = document["subject"]
    engine, bundle = subject["engine"], subject["bundle"] or {}
    return {
        "date": document["started"],
        "model": subject["model"],
        "engine": engine["used"],
        "release": engine["release"],
        "rehearsal": engine["rehearsal"],
        "bundle_digest": bundle.get("digest"),
    }


def flattened(
    row: Mapping[str, Any], omitted: Sequence[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Each value by its path. Keys that are `omitted` are left out at any depth."""
    for name, value in row.items():
        if name in omitted:
            continue
        if isinstance(value, Mapping):
            yield from flattened(value, omitted, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
