"""Takes newer security bulletins of NVIDIA, CSAF 2.0 files, into `builder/data/advisories`.

    python -m maintenance.update_advisories CSAF.json... [--from FOLDER] [-o FOLDER]

Specification: OASIS CSAF 2.0. Which of its fields a bulletin fills in was read from
NVIDIA/product-security@dbb4ada: bulletins 5648 and 5687 of 2025, 5805, 5840 and 5865 of 2026.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder import command
from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.facts import advisories
from builder.facts.advisories import Advisory
from builder.facts.release.version import order
from builder.files import read_text

_CVE = re.compile(r"CVE-\d{4}-\d{4,}")
_CWE = re.compile(r"CWE-\d+")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Bulletin:
    """The advisories of a file, each with the product of ours that it is about.

    `day` is that of its last revision.
    """

    day: str
    rows: tuple[tuple[str, Advisory], ...]


@dataclass(frozen=True, slots=True)
class Update:
    """What bulletins change of one product: rows by their CVE, before and after."""

    product: str
    as_of: tuple[str, str]
    minimum: tuple[str, str]
    rows: tuple[Advisory, ...]
    new: tuple[Advisory, ...]
    changed: tuple[tuple[Advisory, Advisory], ...]


def read(paths: Sequence[Path], folder: Path | None = None) -> list[Bulletin]:
    """The bulletins of files, and those about our products of all files in a folder.

    Raises `BadInput` with every file that is none.
    """
    found: list[Bulletin] = []
    problems: list[Diagnostic] = []
    for path in paths:
        try:
            bulletin = _bulletin(_json(path), str(path))
            if not bulletin.rows:
                known = " and ".join(map(advisories.name, advisories.products()))
                problems.append(Diagnostic(str(path), f"is about neither {known}", "leave it out"))
            found.append(bulletin)
        except BadInput as fault:
            problems += fault.diagnostics
    for path in sorted(folder.rglob("*.json")) if folder else ():
        try:
            document = _json(path)
            if _is_csaf(document):
                found.append(_bulletin(document, str(path)))
        except BadInput as fault:
            problems += fault.diagnostics
    if folder and not any(bulletin.rows for bulletin in found):
        problems.append(Diagnostic(str(folder), "holds no bulletin about our products", "check it"))
    if problems:
        raise BadInput(problems)
    return found


def updates(bulletins: Iterable[Bulletin]) -> list[Update]:
    """What bulletins change, by product; the later one of two about the same wins."""
    ordered = sorted(bulletins, key=lambda bulletin: bulletin.day)
    return [_update(product, ordered) for product in advisories.products()]


def write(found: Iterable[Update], folder: Path) -> None:
    """The data files of all products in a folder, each replaced as a whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts = {f"{update.product}.yaml": _text(update) for update in found}
        for name, text in texts.items():
            (folder / f"{name}.new").write_text(text, encoding="utf-8")
        for name in texts:
            (folder / f"{name}.new").replace(folder / name)
    except OSError as fault:
        what = f"cannot be written: {fault.strerror}"
        raise BadInput(Diagnostic(str(folder), what, "name a folder with -o")) from None


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as fault:
        raise BadInput(Diagnostic(str(path), f"is not JSON: {fault}", "get it again")) from None


def _is_csaf(document: Any) -> bool:
    return isinstance(document, dict) and _at(document, "document", "csaf_version") is not None


def _bulletin(document: Any, name: str) -> Bulletin:
    version = _at(document, "document", "csaf_version")
    if version != "2.0":
        what = "is no CSAF 2.0 file" if version is None else f"is CSAF {version}, not 2.0"
        raise BadInput(
            Diagnostic(name, what, "give a security bulletin, such as 2026/5865/5865.json")
        )
    try:
        tracking = document["document"]["tracking"]
        bulletin, first = int(tracking["id"]), str(tracking["initial_release_date"])[:10]
        last = str(tracking["current_release_date"])[:10]
        if not (_DAY.fullmatch(first) and _DAY.fullmatch(last)):
            raise ValueError(f"{first} and {last} are no days")
        versions = dict(_versions(document["product_tree"]["branches"]))
        rows = [
            row
            for given in document.get("vulnerabilities", [])
            for row in _rows(given, versions, bulletin, first)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        what = f"is a broken CSAF file: {type(fault).__name__} {fault}"
        raise BadInput(Diagnostic(name, what, "get it again")) from None
    return Bulletin(last, tuple(rows))


def _at(node: Any, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _versions(branches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Products of ours with their versions, as the bulletin words them, by its own ids."""
    names = {_bare(advisories.name(product)): product for product in advisories.products()}
    for branch in branches:
        yield from _versions(branch.get("branches", []))
        if (product := names.get(_bare(branch["name"]))) and "product" in branch:
            yield branch["product"]["product_id"], (product, branch["product"]["name"])


def _bare(name: str) -> str:
    """A product's name however a bulletin writes it: `NVIDIA TensorRT-LLM`, `TensorRT LLM`."""
    return re.sub(r"[^a-z]", "", name.lower()).removeprefix("nvidia")


def _rows(
    given: Mapping[str, Any], versions: Mapping[str, tuple[str, str]], bulletin: int, day: str
) -> Iterator[tuple[str, Advisory]]:
    """One vulnerability, for each of our products that it is in."""
    cve, cwe, status = given["cve"], _at(given, "cwe", "id"), given["product_status"]
    if not _CVE.fullmatch(cve) or not _CWE.fullmatch(cwe or "CWE-0"):
        raise ValueError(f"{cve} and {cwe} name no vulnerability and weakness")
    scores = [float(row["cvss_v3"]["baseScore"]) for row in given.get("scores", [])]
    if not all(0 <= score <= 10 for score in scores):
        raise ValueError(f"{cve} has a score beyond 10")
    ids = [*status.get("known_affected", []), *status.get("fixed", [])]
    for product in dict.fromkeys(versions[each][0] for each in ids if each in versions):
        fixes = [versions[each] for each in status.get("fixed", []) if each in versions]
        fixed = [_version(product, text) for owner, text in fixes if owner == product]
        fixed_in = max(fixed, key=lambda text: order(text) or ((), 0, 0, 0), default=None)
        score = max(scores, default=None)
        yield product, Advisory(cve, score, cwe, fixed_in, bulletin, day, areas=())


def _version(product: str, text: str) -> str:
    """A version as the data spells it: bulletins write `v1.3.0 rc17`."""
    version = advisories.container(product, re.sub(r"\s", "", text).removeprefix("v"))
    if order(version) is None:
        raise ValueError(f"{text} is not a version")
    return version


def _update(product: str, bulletins: Iterable[Bulletin]) -> Update:
    before = {row.cve: row for row in advisories.all_of(product)}
    after, as_of = dict(before), advisories.as_of(product)
    for bulletin in bulletins:
        for about, row in bulletin.rows:
            if about == product:
                after[row.cve] = _merged(after.get(row.cve), row)
                as_of = max(as_of, bulletin.day)
    rows = tuple(after.values())
    least, closing = advisories.minimum(product).version, advisories.closes_all(product)
    return Update(
        product,
        (advisories.as_of(product), as_of),
        (least, advisories.first_with_all_fixes(rows) if least == closing else least),
        rows,
        tuple(row for cve, row in after.items() if cve not in before),
        tuple((before[cve], row) for cve, row in after.items() if before.get(cve, row) != row),
    )


def _merged(old: Advisory | None, new: Advisory) -> Advisory:
    """What a bulletin says of an advisory; it need not say everything, nor be the latest."""
    if old is None:
        return new
    if new.published < old.published:
        return old
    return replace(
        new,
        cvss=old.cvss if new.cvss is None else new.cvss,
        cwe=new.cwe or old.cwe,
        fixed_in=new.fixed_in or old.fixed_in,
        areas=old.areas,
    )


def _text(update: Update) -> str:
    """The data file: its head with the new day and minimum, and all rows."""
    (path,) = (path for path in advisories.files() if path.stem == update.product)
    head, rows, _ = read_text(path).partition("\nadvisories:\n")
    head += rows
    head = _with(head, r'(?m)^(as_of: )".*"$', update.as_of[1])
    head = _with(head, r'(?m)^(minimum:\n  version: )".*"$', update.minimum[1])
    return head + "".join(map(_row, update.rows))


def _with(head: str, pattern: str, value: str) -> str:
    return re.sub(pattern, lambda found: f'{found[1]}"{value}"', head, count=1)


def _row(row: Advisory) -> str:
    words = asdict(row) | {"areas": f"[{', '.join(row.areas)}]"}
    quoted = {"fixed_in", "published"}
    names = ("cvss", "cwe", "fixed_in", "bulletin", "published", "areas")
    lines = [f"  - cve: {row.cve}"]
    for name in names:
        value = "null" if words[name] is None else words[name]
        lines.append(
            f"    {name}: " + (f'"{value}"' if name in quoted and words[name] else f"{value}")
        )
    if not row.verified:
        lines.append("    verified: false")
    return "\n".join(lines) + "\n"


def text_of(found: Sequence[Update]) -> str:
    """What an update of the advisories has changed."""
    lines = []
    for each in found:
        lines.append(f"{advisories.name(each.product)}: as of {' -> '.join(_once(each.as_of))}")
        for row in each.new:
            fixed = f"fixed in {row.fixed_in}" if row.fixed_in else "no fix known"
            lines.append(f"  new: {row.cve} ({row.cvss}), {fixed}, bulletin {row.bulletin}")
        for old, new in each.changed:
            one, two = asdict(old), asdict(new)
            words = [f"{key} {one[key]} -> {two[key]}" for key in one if one[key] != two[key]]
            lines.append(f"  changed: {old.cve}: {', '.join(words)}")
        if not each.new and not each.changed:
            lines.append("  nothing new")
        lines.append(f"  minimum: {' -> '.join(_once(each.minimum))}")
    return "\n".join(lines)


def _once(values: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(values)


def main(words: Sequence[str] | None = None) -> int:
    """Merge the bulletins and say what changed; the exit code is that of the builder's errors."""
    parser = argparse.ArgumentParser(prog="python -m maintenance.update_advisories")
    parser.description = (
        "Merge security bulletins of NVIDIA, CSAF 2.0 files, into the advisories that deployments "
        "are judged by. Without -o, the files of this checkout are replaced; with it, plan, "
        "render and check take the new ones by --advisories FOLDER."
    )
    parser.add_argument("bulletins", type=Path, nargs="*", metavar="CSAF.json", help="bulletins")
    text = "also all bulletins about our products below this folder"
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help=text)
    text = "merge into the advisories of this folder, not into those that ship"
    parser.add_argument("--advisories", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="write the files there")
    return command.run(lambda: _run(parser.parse_args(words)))


def _run(options: argparse.Namespace) -> None:
    if not options.bulletins and not options.folder:
        raise BadInput(Diagnostic("", "no bulletin is given", "name CSAF files, or --from FOLDER"))
    folder = options.advisories or advisories.ADVISORIES
    with advisories.of_folder(folder):
        found = updates(read(options.bulletins, options.folder))
        write(found, options.output or folder)
        print(text_of(found))


if __name__ == "__main__":
    sys.exit(main())
