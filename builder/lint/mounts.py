"""What a container sees of files outside it: mounts, against the paths that its server reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import value_at
from ..general_rules import Severity
from . import rules
from .pods import listed
from .script import Statement, Word
from .serving import is_open

RULE = rules.FILE_NOT_MOUNTED
_ENGINES = frozenset(("docker", "podman", "nerdctl"))
_FLAGS = ("-v", "--volume")
COPIES = frozenset(("COPY", "ADD"))
_LONG, _PYXIS = "--mount", "--container-mounts"
# Of SOURCE:TARGET, where ${NAME:-x} and ${NAME:-${OTHER:-x}} are one part each.
_PARTS = re.compile(r"((?:\$\{(?:[^{}]|\$\{[^{}]*\})*\}|[^:])*)")
_ENDS = re.compile(r"&&|\|\||[;|&\n]")  # of commands
# Folders that an image has too: what is asked for below them may be its own.
_OF_IMAGES = frozenset(
    ("", "/app", "/etc", "/home", "/opt", "/root", "/run", "/tmp", "/usr", "/var", "/workspace")
)


@dataclass(frozen=True, slots=True)
class Mount:
    """`source`, outside, is seen at `target`; `names` are files that are known to be in it."""

    source: str
    target: str
    names: Mapping[str, str]

    def holds(self, path: str) -> bool:
        return _below(self.target, path) is not None

    def outside(self, path: str) -> str | None:
        """Where a path of the container is outside."""
        rest = _below(self.target, path)
        return None if rest is None else self.source + rest


def lost(
    path: str, place: Location, where: str, mounts: Sequence[Mount], made: Iterable[str] = ()
) -> Iterator[Diagnostic]:
    """A path that no mount covers, where one of them has what is meant under another path. `made`
    are the texts of what runs in the container before the path is read, and may write it."""
    if not path.startswith("/") or is_open(path) or any(row.holds(path) for row in mounts):
        return
    if _is_made(path, made):
        return
    for mount in mounts:
        if meant := _meant(path, mount):
            right, severity = meant
            what = f"{path} is not in the container: {mount.source} is at {mount.target} there"
            yield located(place, where, what, f"name {right}, or put it there", RULE, severity)
            return


def _is_made(path: str, texts: Iterable[str]) -> bool:
    """Whether a file, or its folder, is named by another command than the one that reads it."""
    folder, _, name = path.rpartition("/")
    lines = _ENDS.split(" ".join(texts).replace("\\\n", " "))
    return sum(name in line or (folder != "" and folder in line) for line in lines) > 1


def of_command(
    rows: Sequence[Statement],
    words: Sequence[Word],
    paths: Sequence[Word],
    written: Collection[str],
) -> Iterator[Diagnostic]:
    """Paths of a server's command that its container does not see. `rows` are its statement behind
    those that start its shell, `words` stand before the server, `written` are the files that the
    script has written outside."""
    names = [word.text.rpartition("/")[2] for word in words]
    is_run = not _ENGINES.isdisjoint(names) and "run" in names
    given = list(_given(words))
    if not (is_run or given):
        return
    mounts = [mount for text in given for mount in of_text(text)]
    # Of the shell in the container, which is a word of what starts it.
    made = [word.text for word in rows[0].words if re.search(r"\s", word.text)]
    for word in paths:
        path, place = word.text, word.location
        if found := next(lost(path, place, "", mounts, made), None):
            # A cluster may mount more by itself.
            yield found if is_run else replace(found, severity="warning")
            continue
        folder = path.rpartition("/")[0]
        unseen = folder.startswith("/") and not any(mount.holds(path) for mount in mounts)
        if is_run and path in written and unseen and not _is_made(path, made):
            what = f"{path} is written outside the container, which does not see it"
            yield located(place, "", what, f"mount it: -v {folder}:{folder}", RULE, "warning")


def of_copies(rows: Sequence[Statement]) -> list[Mount]:
    """What the last stage of a Dockerfile copies into its image; nothing where one of its copies
    goes to a folder that is not known."""
    stages: dict[str, list[Mount]] = {}
    found: list[Mount] = []
    folder, is_known = "", True
    for row in rows:
        words = [word.text for word in row.words if not word.text.startswith("--")]
        if words[0] == "FROM" and len(words) > 1:
            found, folder, is_known = list(stages.get(words[1].lower(), ())), "", True
            stages[words[-1].lower()] = found
        elif words[0] == "WORKDIR" and len(words) > 1:
            folder = _joined(folder, words[1])
        elif words[0] in COPIES and len(words) > 2:
            target = _joined(folder, words[-1])
            is_known = is_known and target.startswith("/")
            found += [_mount(source, target) for source in words[1:-1]]
    return found if is_known else []


def _joined(folder: str, path: str) -> str:
    """A path of an image from a folder of it; one with a variable is not known."""
    if path.startswith("/") or "$" in path:
        return path
    return f"{folder.rstrip('/')}/{path}" if folder else path


def of_rows(rows: Any) -> list[Mount]:
    """The mounts that a service of a Compose file lists."""
    found: list[Mount] = []
    for row in listed(rows):
        if isinstance(row, str):
            found += of_text(row)
        elif target := value_at(row, "target"):
            source = str(value_at(row, "source") or "")
            found.append(_mount(source, str(target)))
    return found


def of_text(text: str) -> list[Mount]:
    """Mounts as `SOURCE:TARGET[:MODE]`, with commas between several, or as `source=,target=`."""
    if re.search(r"(?:^|,)(?:target|destination|dst)=", text):
        pairs = dict(part.partition("=")[::2] for part in text.split(","))
        source = pairs.get("source") or pairs.get("src") or ""
        return [
            _mount(source, pairs[key]) for key in ("target", "destination", "dst") if key in pairs
        ]
    found = []
    for each in text.split(","):
        parts = [part for part in _PARTS.findall(each) if part]
        if len(parts) > 1:
            found.append(_mount(parts[0], parts[1]))
    return found


def _mount(source: str, target: str) -> Mount:
    name = source.rpartition("/")[2]
    inside = f"{target}{name}" if target.endswith("/") else target
    is_file = "." in name.strip(".") and name == inside.rpartition("/")[2]
    return Mount(source, target.rstrip("/") or "/", {name: inside} if is_file else {})


def _given(words: Sequence[Word]) -> Iterator[str]:
    """The values of the flags that mount something."""
    for word, following in pairwise([*words, Word("", Location(1, 1), True)]):
        name, equals, value = word.text.partition("=")
        if name in (*_FLAGS, _LONG, _PYXIS):
            yield value if equals else following.text
        elif name.startswith(("-v/", "-v.", "-v$", "-v~")):
            yield word.text.removeprefix("-v")


def _meant(path: str, mount: Mount) -> tuple[str, Severity] | None:
    """The path that a mount has for what is at a path, outside or by almost the same name, and how
    sure that is: what has another name may be in the image."""
    is_own = mount.source.startswith("/") and mount.source.rstrip("/") not in _OF_IMAGES
    rest = _below(mount.source, path) if is_own else None
    if rest is not None:
        return mount.target + rest, "error"
    if found := mount.names.get(path.rpartition("/")[2]):
        return found, "error"
    depth = mount.target.count("/") + 1
    head, tail = path.split("/")[:depth], path.split("/")[depth:]
    if tail and closest("/".join(head), [mount.target]):
        is_named = mount.source.rstrip("/").rpartition("/")[2] == head[-1]
        return "/".join([mount.target, *tail]), "error" if is_named else "warning"
    return None


def _below(folder: str, path: str) -> str | None:
    """What of a path stands behind a folder that it is in."""
    folder = folder.rstrip("/")
    is_in = path == folder or path.startswith(f"{folder}/")
    return path.removeprefix(folder) if is_in else None
