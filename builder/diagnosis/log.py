"""Reads logs of any size: whole lines, each kind of line once, with their time, level and rank.

Most lines of a long log differ by numbers alone. Lines are compared without their digits, and only
the first lines of a kind are looked at closely; of kinds that matter every line is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
MOST_KINDS = 200_000  # of lines that are known not to matter: about 40 MB
MOST_OF_A_KIND = 1_000  # of lines that matter are read one by one; then the last of a chunk
LONGEST_LINE = 4_000  # characters of a line that are read
NEIGHBOURS = 50  # lines before one without a time, among which one with a time is looked for

_DIGITS = b"0123456789"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What runs a program writes this before its lines: Kubernetes, Compose, srun, mpirun, journald.
_CARRIER = re.compile(
    r"(?:\[pod/[^\]]+\] |\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) |[\w.-]+ +\| | *\d{1,5}: "
    r"|\[\d+,\d+\]<std(?:out|err)>: ?|[A-Z][a-z]{2} [ \d]\d [\d:]{8} [\w.-]+ [\w./@-]+\[\d+\]: )+"
)
# vLLM and Ray name the process.
_PROCESS = r"\((?P<process>\w+)(?: rank=\d+)? pid=\d+(?:, ip=[\w.:]+)?\) ?"
# The shapes in which programs write time, level and rank.
_HEADS = tuple(
    re.compile(text)
    for text in (
        r"\[(?P<date>\d\d/\d\d/\d{4})-(?P<time>\d\d:\d\d:\d\d)\] \[TRT-LLM\] ?"
        r"(?:\[RANK (?P<rank>\d+)\] ?)?"
        r"\[(?P<level>[A-Z])\] ?(?:\[[\w.]*\](?:\[RANK (?P<rank2>\d+)\])? ?)?",
        r"\[TensorRT-LLM\]\[(?P<level>[A-Z]+)\] ?",
        rf"(?:{_PROCESS})*(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
        r"(?P<date>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d) (?:\[[^\]]+\] ?|- [\w.]+:\d+ - )",
        rf"(?:{_PROCESS})+(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +)?",
        r"(?P<level>[IWEF])(?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d)\.\d+ +\d+ [\w.]+:\d+\] ?\"?",
        r"\[rank(?P<rank>\d+)\]:(?:\[(?P<level>[IWEF])\d{3,4} [\d:.]+ [\w.]+:\d+\])? ?",
        r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +",
        r"\[?(?P<date>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:[.,]\d+)?Z?\]?\s*"
        r"(?:\[?(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?:?\s*)?",
        r"(?P<level>TRACE|DEBUG|INFO|WARN|ERROR) (?=[\w.:]+: )",
    )
)
# Levels that stand within a message: of libraries, of enroot's lines under pyxis, and of JSON.
_LEVEL_INSIDE = re.compile(
    r"(?:(?:NCCL|UCX) +|pyxis: +\[|\"level\": ?\")(?P<level>TRACE|INFO|WARN|ERROR|FATAL|DEBUG)\b",
    re.IGNORECASE,
)
_INFORMATION = frozenset(("I", "V", "D", "T", "INFO", "DEBUG", "TRACE", "VERBOSE"))
_ERRORS = frozenset(("E", "F", "ERROR", "CRITICAL", "FATAL"))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: its number from 1, its text without colours, and its message alone.

    `level` is information, warning, error, or empty where the line has none. `moment_s` is its
    time within a year, from the line or the last one before it that has a time.
    """

    file: str
    number: int
    text: str
    message: str
    level: str
    rank: str
    moment_s: float | None


def of_text(file: str, number: int, raw: bytes) -> Line:
    """A line as it is written, without what surrounds its message."""
    text = raw[: 4 * LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
    if "\r" in text:  # progress bars: what a terminal would show last
        text = text.rpartition("\r")[2] or text
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    text = text[:LONGEST_LINE]
    carrier = _CARRIER.match(text)
    message = text[carrier.end() :] if carrier else text
    level = rank = ""
    moment_s = None
    for head in _HEADS:
        if found := head.match(message):
            parts = found.groupdict()
            level = _level(parts.get("level") or "")
            rank = parts.get("rank") or parts.get("rank2") or parts.get("process") or ""
            moment_s = _moment_s(parts.get("date"), parts.get("time"))
            message = message[found.end() :]
            break
    if inside := _LEVEL_INSIDE.search(message):
        level = _level(inside["level"].upper())
    return Line(file, number, text, message, level, rank, moment_s)


def _level(word: str) -> str:
    if word in _INFORMATION:
        return "information"
    if word in _ERRORS:
        return "error"
    return "warning" if word else ""


# 09/14/2026, 2026-09-14, 09-14 and 0914.
_MONTH_AND_DAY = re.compile(r"(?:\d{4}-)?(\d\d)[-/]?(\d\d)(?:/\d{4})?")


def _moment_s(date: str | None, time: str | None) -> float | None:
    """Seconds since a common start; some programs write no year, so it does not count."""
    if not date or not time:
        return None
    if not (found := _MONTH_AND_DAY.fullmatch(date)):
        return None
    hours, minutes, seconds = map(int, time.split(":"))
    days = int(found[1]) * 31 + int(found[2])
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


@dataclass(slots=True)
class Reader:
    """Hands the lines of a log that may matter to `take`, which says whether their kind does.

    `matters` is asked once for each kind of line. After a log is read, `lines` is its number of
    lines, and `served` the last of them that tells of a request answered with success.
    """

    matters: Callable[[bytes], bool]
    lines: int = 0
    served: int = 0
    _quiet: set[bytes] = field(default_factory=set)
    _loud: dict[bytes, int] = field(default_factory=dict)

    def read(self, stream: BinaryIO, file: str) -> Iterator[tuple[Line, int]]:
        """Lines that matter, each with how many of its kind it stands for; last the last line."""
        rest, moment_s, last = b"", None, b""
        is_cut = False
        while block := stream.read(CHUNK_BYTES):
            if is_cut:  # within a line whose begin was read
                _, end, block = block.partition(b"\n")
                is_cut = not end
            block = rest + block
            whole, end, rest = block.rpartition(b"\n")
            if not end and len(rest) < 4 * CHUNK_BYTES:
                continue
            if not end:
                whole, rest, is_cut = rest, b"", True
            for line, count in self._of_block(whole, file, moment_s):
                moment_s = line.moment_s
                yield line, count
            last = whole.rstrip(b"\n").rpartition(b"\n")[2] or last
        if rest:
            yield from self._of_block(rest, file, moment_s)
            last = rest
        yield replace(of_text(file, self.lines, last), moment_s=moment_s), 0

    def _of_block(
        self, block: bytes, file: str, moment_s: float | None
    ) -> Iterator[tuple[Line, int]]:
        kinds = block.translate(None, _DIGITS).split(b"\n")
        raw = block.split(b"\n")
        self._find_served(raw)
        for kind in set(kinds).difference(self._quiet, self._loud):
            if self.matters(kind):
                self._loud[kind] = 0
            elif len(self._quiet) < MOST_KINDS:
                self._quiet.add(kind)
        loud = self._loud.keys() & set(kinds)
        crowded = {kind for kind in loud if self._loud[kind] > MOST_OF_A_KIND}
        wanted = loud - crowded
        if loud:
            ends = {kind: len(kinds) - 1 - kinds[::-1].index(kind) for kind in crowded}
            at_end = {index: kinds.count(kind) for kind, index in ends.items()}
            for index, kind in enumerate(kinds):
                if kind in wanted:
                    self._loud[kind] += 1
                    yield self._line(raw, index, file, moment_s), 1
                elif index in at_end:
                    yield self._line(raw, index, file, moment_s), at_end[index]
        self.lines += len(raw)

    def _line(self, raw: list[bytes], index: int, file: str, moment_s: float | None) -> Line:
        """A line; one without a time has that of the last one before it that has one."""
        line = of_text(file, self.lines + index + 1, raw[index])
        before = index
        while line.moment_s is None and before > max(0, index - NEIGHBOURS):
            before -= 1
            line = replace(line, moment_s=of_text(file, 0, raw[before]).moment_s)
        return line if line.moment_s is not None else replace(line, moment_s=moment_s)

    def _find_served(self, raw: list[bytes]) -> None:
        for index in range(len(raw) - 1, -1, -1):
            if b'"POST ' in raw[index] and b'" 200' in raw[index]:
                self.served = self.lines + index + 1
                return
