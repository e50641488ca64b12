"""What a container sees of files outside it: mounts, against the paths that its server reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..diagnostics import Diagnostic, Location, Severity, closest, located
from ..documents import value_at
from .script import Statement, Word
from .serving import is_open

RULE = "file-not-mounted"
_ENGINES = frozenset(("docker", "podman", "nerdctl"))
_FLAGS = ("-v", "--volume")
_COPIES = frozenset(("COPY", "ADD"))
_LONG, _PYXIS = "--mount", "--container-mounts"
# Of SOURCE:TARGET, where ${NAME:-x} and ${NAME:-${OTHER:-x}} are one part each.
_PARTS = re.compile(r"((?:\$\{(?:[^{}]|\$\{[^{}]*\})*\}|[^:])*)")


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


def lost(path: str, place: Location, where: str, mounts: Sequence[Mount]) -> Iterator[Diagnostic]:
    """A path that no mount covers, where one of them has what is meant under another path."""
    if not path.startswith("/") or is_open(path) or any(row.holds(path) for row in mounts):
        return
    for mount in mounts:
        if right := _meant(path, mount):
            what = f"{path} is not in the container: {mount.source} is at {mount.target} there"
            yield located(place, where, what, f"name {right}, or put it there", RULE)
            return


def of_command(
    words: Sequence[Word], paths: Sequence[Word], written: Collection[str]
) -> Iterator[Diagnostic]:
    """Paths of a server's command that its container does not see. `words` stand before the
    server, `written` are the files that the script has written outside."""
    names = [word.text.rpartition("/")[2] for word in words]
    is_run = not _ENGINES.isdisjoint(names) and "run" in names
    given = list(_given(words))
    if not (is_run or given):
        return
    mounts = [mount for text in given for mount in of_text(text)]
    # A cluster may mount more by itself.
    severity: Severity = "error" if is_run else "warning"
    for word in paths:
        path, place = word.text, word.location
        for row in lost(path, place, "", mounts):
            yield replace(row, severity=severity)
            break
        else:
            folder = path.rpartition("/")[0]
            unseen = folder.startswith("/") and not any(mount.holds(path) for mount in mounts)
            if is_run and path in written and unseen:
                what = f"{path} is written outside the container, which does not see it"
                yield located(place, "", what, f"mount it: -v {folder}:{folder}", RULE, "warning")


def of_copies(rows: Sequence[Statement]) -> list[Mount]:
    """What a Dockerfile copies into its image."""
    found = []
    for row in rows:
        words = [word.text for word in row.words if not word.text.startswith("--")]
        if words[0] in _COPIES and len(words) > 2 and words[-1].startswith("/"):
            found += [_mount(source, words[-1]) for source in words[1:-1]]
    return found


def of_rows(rows: Any) -> list[Mount]:
    """The mounts that a service of a Compose file lists."""
    found: list[Mount] = []
    for row in rows if isinstance(rows, list) else ():
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
            yield value if equals and name.startswith("--") else following.text


def _meant(path: str, mount: Mount) -> str | None:
    """The path that a mount has for what is at a path, outside or by almost the same name."""
    rest = _below(mount.source, path) if mount.source.startswith("/") else None
    if rest is not None:
        return mount.target + rest
    if found := mount.names.get(path.rpartition("/")[2]):
        return found
    depth = mount.target.count("/") + 1
    head, tail = path.split("/")[:depth], path.split("/")[depth:]
    if tail and closest("/".join(head), [mount.target]):
        return "/".join([mount.target, *tail])
    return None


def _below(folder: str, path: str) -> str | None:
    """What of a path stands behind a folder that it is in."""
    folder = folder.rstrip("/")
    is_in = path == folder or path.startswith(f"{folder}/")
    return path.removeprefix(folder) if is_in else None
