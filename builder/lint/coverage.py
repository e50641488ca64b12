"""How much of a file was judged, so that nothing reads as right that nobody read."""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class Judged:
    """What was judged: sections of engine options, server commands, container images, and whether
    the file's own format was.

    `variables` are the paths of options whose value is not in the file: a shell or a template puts
    it in. Their names are judged, their values are not. `unread` says what writes options or flags
    in a way that is not read, or has them in another file.
    """

    sections: int = 0
    commands: int = 0
    images: int = 0
    itself: bool = False
    variables: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sections or self.commands or self.images or self.itself)

    def __add__(self, other: Judged) -> Judged:
        return Judged(
            self.sections + other.sections,
            self.commands + other.commands,
            self.images + other.images,
            self.itself or other.itself,
            (*self.variables, *other.variables),
            (*self.unread, *other.unread),
        )


NOTHING = Judged()
ITSELF = Judged(itself=True)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One file by one release: its kind, `None` if check knows none, what is wrong with it, and
    what was judged of it."""

    kind: str | None
    diagnostics: list[Diagnostic]
    judged: Judged = NOTHING
