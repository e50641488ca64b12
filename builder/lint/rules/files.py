"""Checks the files that a server reads: mounted, written before the start, spelled correctly."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, pairwise
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, located
from ...documents import value_at
from ...general_rules import Rule, Severity
from ..engine import every
from ..model import Server, Statement, Word, is_open
from ..read.containers import listed
from ..read.shell import Script
from ..read.shell_values import Values, with_branches
from .ports import PORT_UNREACHED, Launch

MISSING_OPTION_FILE = Rule(
    "missing-option-file",
    "A server reads an option file that is not there, and one of nearly the same name is.",
)
FILE_NOT_MOUNTED = Rule(
    "file-not-mounted", "A server reads a file at a path that nothing mounts into its container."
)
FILE_LATE = Rule(
    "file-late",
    "A script writes an option file after it starts the server that reads it.",
    "warning",
)
FILE_OVERWRITTEN = Rule(
    "file-overwritten", "A script overwrites an option file that it has just written.", "warning"
)

# An option file flag or a mount does not count as a use of the file.
_MOUNTED = re.compile(r"(?:-v|--volume|--mount|--container-mounts)[=\s]+\S+")
_BETWEEN_NAMES = re.compile(r"[^\w.-]+")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_ONLY_SHOW = ("cat", "chmod", "echo", "ls", "mkdir", "printf", "rm", "touch")


@dataclass(frozen=True, slots=True)
class HandedFiles:
    """Files that scripts create or use, by the last part of their names. `made` files may exist
    although their text is unknown. `used` files are read by some command. `folders` maps each file
    to the folder into which a script writes it."""

    made: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    folders: dict[str, str] = field(default_factory=dict)

    def place(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self.folders[name] = folder


@cache
def _read_by_server() -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(every('file_flags'))})[=\s\"',-]+\S+")


def files_of_scripts(
    scripts: Iterable[Script], around: str = "", places: Iterable[str] = ()
) -> HandedFiles:
    """Collects the files of scripts. `around` is the text of the file that contains the scripts;
    file names in it count as well. `places` are the paths at which that file puts its own texts."""
    found = HandedFiles(set(_names(_read_by_server().sub(" ", around))))
    for path in places:
        found.place(path)
    for script in scripts:
        values = script.values
        for document in script.here:
            found.place(values.expanded(document.name))
            _hand(found, values.expanded(document.text))
        for row in script.statements:
            written = _of_redirects(row, values, ">")
            for path in written:
                found.place(path)
                found.made.update(_names(path))
            for path in _of_redirects(row, values, "<"):
                found.made.update(_names(path))
                found.used.update(_names(path))
            words = [word.text for word in values.words(row.words)]
            line = "" if all(map(_ASSIGNED.match, words)) else " ".join(words)
            if line.startswith("tee "):
                found.made.update(_names(line))
            elif line and (written or row.end == "|" or words[0] not in _ONLY_SHOW):
                _hand(found, line)
    return found


def _of_redirects(row: Statement, values: Values, sign: str) -> list[str]:
    """The files that a command reads (`<`) or writes (`>`) by its redirections."""
    return [values.expanded(word.text) for operator, word in row.redirects if sign in operator]


def _hand(found: HandedFiles, text: str) -> None:
    """Records every file that a text mentions as available to the program that reads the text."""
    rest = _read_by_server().sub(" ", text)
    found.made.update(_names(rest))
    found.used.update(_names(_MOUNTED.sub(" ", rest)))


def _names(text: str) -> list[str]:
    return [name for name in _BETWEEN_NAMES.split(text) if "." in name]


_SPAN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")  # of ports in EXPOSE
_WRITERS = ("echo", "printf", "cat")
# Commands that read no option file.
_ASIDE = frozenset((*_WRITERS, "mkdir", "cd", "set", "export", "chmod", "#"))


def image_file_diagnostics(
    rows: Sequence[Statement], commands: Sequence[Launch]
) -> Iterator[Diagnostic]:
    """Checks the option file and port of a Dockerfile's server against its COPY and EXPOSE
    lines."""
    copied = copied_mounts(rows)
    made = [_text(row) for row in rows if row.words[0].text not in _NO_RUN]
    for command in commands:
        if file := command.option_file:
            yield from path_diagnostics(file.text, file.location, "", copied, made)
    if len(commands) == 1:
        yield from exposed_port_diagnostics(rows, {commands[0].own_port: "--port"})


def exposed_port_diagnostics(
    rows: Sequence[Statement], own: Mapping[str, str]
) -> Iterator[Diagnostic]:
    """Checks ports that the flags of a Dockerfile's server set against its EXPOSE lines."""
    opened: dict[str, Location] = {}
    for row in rows:
        if row.words[0].text == "EXPOSE":
            opened |= {word.text.partition("/")[0]: word.location for word in row.words[1:]}
    spans = [_SPAN.fullmatch(port) for port in opened]
    if not opened or not all(spans):
        return
    ends = [(int(row[1]), int(row[2] or row[1])) for row in spans if row]
    for port, flag in own.items():
        if port.isdigit() and not any(first <= int(port) <= last for first, last in ends):
            first_port, place = next(iter(opened.items()))
            what = f"the server listens at {port}, and {', '.join(opened)} is opened"
            fix = f"open {port}, or give {flag} {first_port.partition('-')[0]}"
            yield located(place, "EXPOSE", what, fix, PORT_UNREACHED)


def _text(row: Statement) -> str:
    """The words of a command and the names of the files that it writes, as one line of text."""
    files = (word.text for _, word in row.redirects)
    return " ".join([*(word.text for word in row.words), *files, "\n"])


def file_order_diagnostics(
    rows: Sequence[Statement], commands: Sequence[Launch], values: Values
) -> Iterator[Diagnostic]:
    """Reports option files that are written twice, or after the start of the server that reads
    them."""
    first: dict[str, Location] = {}
    last: dict[str, tuple[int, Location]] = {}
    for index, (row, optional) in enumerate(with_branches(rows)):
        place = row.words[0].location
        for sign, word in _outputs(row):
            if optional or not sign.startswith(">"):
                continue
            name = values.expanded(word.text)
            first.setdefault(name, place)
            if sign == ">" and name in last and not _is_read(rows[last[name][0] + 1 : index], name):
                what = f"overwrites {name}: what line {last[name][1].line} wrote is lost"
                yield located(place, "", what, "add to it with >>", FILE_OVERWRITTEN)
            last[name] = index, place
    for command in commands:
        file = command.option_file
        late = first.get(file.text) if file else None
        if file and late and command.start and late.line > command.start.line:
            what = f"{file.text} is written in line {late.line}, after the server has started"
            yield located(file.location, "", what, "write it before", FILE_LATE)


def _outputs(row: Statement) -> Sequence[tuple[str, Word]]:
    """The files to which a command only writes, each with its operator (`>` or `>>`)."""
    first, *rest = row.words
    if first.text == "tee":
        sign = ">>" if any(word.text in ("-a", "--append") for word in rest) else ">"
        return [(sign, word) for word in rest if not word.text.startswith("-")]
    return row.redirects if first.text in _WRITERS else ()


def _is_read(rows: Sequence[Statement], name: str) -> bool:
    """Whether any command between two others may read a file."""
    return any(
        "=" not in row.words[0].text
        and (row.words[0].text not in _ASIDE or any(name in word.text for word in row.words))
        for row in rows
    )


_ENGINES = frozenset(("docker", "podman", "nerdctl"))
_FLAGS = ("-v", "--volume")
COPIES = frozenset(("COPY", "ADD"))
# Dockerfile instructions that run no command and so create no files.
_NO_RUN = COPIES | {"FROM", "WORKDIR", "ENV", "ARG", "EXPOSE", "LABEL", "USER"}
_LONG, _PYXIS = "--mount", "--container-mounts"
# The parts of SOURCE:TARGET; ${NAME:-x} and ${NAME:-${OTHER:-x}} count as one part each.
_PARTS = re.compile(r"((?:\$\{(?:[^{}]|\$\{[^{}]*\})*\}|[^:])*)")
_ENDS = re.compile(r"&&|\|\||[;|&\n]")  # of commands
# Folders that images have too: a path below them may be part of the image.
_OF_IMAGES = frozenset(
    ("", "/app", "/etc", "/home", "/opt", "/root", "/run", "/tmp", "/usr", "/var", "/workspace")
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of `source` at `target`; `names` maps the files known to be in it to their paths."""

    source: str
    target: str
    names: Mapping[str, str]

    def holds(self, path: str) -> bool:
        return _below(self.target, path) is not None

    def outside(self, path: str) -> str | None:
        """The path outside the container for a path inside it."""
        rest = _below(self.target, path)
        return None if rest is None else self.source + rest


def path_diagnostics(
    path: str, place: Location, where: str, mounts: Sequence[Mount], made: Iterable[str] = ()
) -> Iterator[Diagnostic]:
    """Reports a path that no mount covers if a mount has the same file at another path. `made` are
    the texts of commands that run in the container before the path is read: they may create the
    file."""
    if not path.startswith("/") or is_open(path) or any(row.holds(path) for row in mounts):
        return
    if _is_made(path, made):
        return
    for mount in mounts:
        if meant := _meant(path, mount):
            right, severity = meant
            what = f"{path} is not in the container: {mount.source} is at {mount.target} there"
            yield located(
                place, where, what, f"name {right}, or put it there", FILE_NOT_MOUNTED, severity
            )
            return


def _is_made(path: str, texts: Iterable[str]) -> bool:
    """Whether a command other than the one that reads a file mentions the file or its folder."""
    folder, _, name = path.rpartition("/")
    lines = _ENDS.split(" ".join(texts).replace("\\\n", " "))
    return sum(name in line or (folder != "" and folder in line) for line in lines) > 1


def command_path_diagnostics(
    rows: Sequence[Statement],
    words: Sequence[Word],
    paths: Sequence[Word],
    written: Collection[str],
) -> Iterator[Diagnostic]:
    """Reports paths on a server's command line that its container does not see. `rows` are the
    statements that contain the server, outermost first. `words` are the words before the server.
    `written` are the files that the script writes outside the container."""
    names = [word.text.rpartition("/")[2] for word in words]
    is_run = not _ENGINES.isdisjoint(names) and "run" in names
    mount_texts = list(_mount_texts(words))
    if not (is_run or mount_texts):
        return
    mounts = list(chain.from_iterable(map(parse_mounts, mount_texts)))
    # The script of the container's shell is one word of the command that starts it.
    made = [word.text for word in rows[0].words if re.search(r"\s", word.text)]
    for word in paths:
        path, place = word.text, word.location
        if found := next(path_diagnostics(path, place, "", mounts, made), None):
            # A cluster may add mounts.
            yield found if is_run else replace(found, severity="warning")
            continue
        folder = path.rpartition("/")[0]
        unseen = folder.startswith("/") and not any(mount.holds(path) for mount in mounts)
        if is_run and path in written and unseen and not _is_made(path, made):
            what = f"{path} is written outside the container, which cannot see it"
            yield located(
                place, "", what, f"mount it: -v {folder}:{folder}", FILE_NOT_MOUNTED, "warning"
            )


def copied_mounts(rows: Sequence[Statement]) -> list[Mount]:
    """The files that the last stage of a Dockerfile copies into the image. Returns nothing if the
    target folder of any copy is unknown."""
    stages: dict[str, list[Mount]] = {}
    found: list[Mount] = []
    folder, is_known = "", True
    for row in rows:
        words = [word.text for word in row.words if not word.text.startswith("--")]
        if not words:  # only flags, after a missing backslash
            continue
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
    """Joins a path to a folder of an image; a path with a variable is returned unchanged."""
    if path.startswith("/") or "$" in path:
        return path
    return f"{folder.rstrip('/')}/{path}" if folder else path


def compose_mounts(rows: Any) -> list[Mount]:
    """The mounts that a service of a Compose file lists."""
    found: list[Mount] = []
    for row in listed(rows):
        if isinstance(row, str):
            found += parse_mounts(row)
        elif target := value_at(row, "target"):
            source = str(value_at(row, "source") or "")
            found.append(_mount(source, str(target)))
    return found


def parse_mounts(text: str) -> list[Mount]:
    """Parses mounts from a text. Accepts `SOURCE:TARGET[:MODE]`, separated by commas, and
    `source=...,target=...`."""
    if re.search(r"(?:^|,)(?:target|destination|dst)=", text):
        pairs = dict(part.partition("=")[::2] for part in text.split(","))
        source = pairs.get("source") or pairs.get("src") or ""
        target = pairs.get("target") or pairs.get("destination") or pairs.get("dst")
        return [_mount(source, target)] if target else []
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


def _mount_texts(words: Sequence[Word]) -> Iterator[str]:
    """The values of the flags that mount something."""
    for word, following in pairwise([*words, Word("", Location(1, 1), True)]):
        name, equals, value = word.text.partition("=")
        if name in (*_FLAGS, _LONG, _PYXIS):
            yield value if equals else following.text
        elif name.startswith(("-v/", "-v.", "-v$", "-v~")):
            yield word.text.removeprefix("-v")


def _meant(path: str, mount: Mount) -> tuple[str, Severity] | None:
    """Finds the path in a mount that a wrong path probably means, and the severity to report. The
    wrong path is one from outside the container or has a similar name. A path with a different name
    may be part of the image, so it is only a warning."""
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
    """The part of a path below a folder; `None` if the path is not in the folder."""
    folder = folder.rstrip("/")
    is_in = path == folder or path.startswith(f"{folder}/")
    return path.removeprefix(folder) if is_in else None


NOTHING_HANDED = HandedFiles()


def missing_file_diagnostics(
    worker: Server,
    files: Mapping[str, Mapping[str, Any]],
    read_files: Collection[str],
    handed: HandedFiles,
) -> Iterator[Diagnostic]:
    """Reports an option file that is not among `files` but is probably misspelt. Suggests a file
    with a similar name, or the only unread option file in the same folder. If the folder is filled
    in later (a variable), only unread files are suggested."""
    option_file = worker.file_flag
    is_known = worker.given(files) is not None or any(map(is_open, (worker.file, *files)))
    if not option_file or not worker.file or is_known or worker.file in handed.made:
        return
    folder = worker.file_path.rpartition("/")[0]
    left = [name for name in files if name not in read_files and "." in name]
    unread = []
    for name in left:
        if files[name] and (worker.config_map or handed.folders.get(name) == folder):
            unread.append(name)
    near = closest(worker.file, left if is_open(worker.file_path) else files)
    if near := near or (unread[0] if len(unread) == 1 else None):
        what = f"{option_file[0]} is not one of the files that are provided here"
        fix = f"did you mean {near}?"
        yield located(option_file[1], worker.path, what, fix, MISSING_OPTION_FILE)
