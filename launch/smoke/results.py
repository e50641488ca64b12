"""The result of a check over a transport, and reports of all results as JSON and JUnit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from xml.etree import ElementTree

Outcome = Literal["passed", "failed", "warned", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`reason` is the purpose of the check, `evidence` what it found.

    Only `failed` fails the suite; `skipped` checks do not apply and are not counted.
    """

    id: str
    title: str
    reason: str
    transport: str
    outcome: Outcome
    evidence: str
    seconds: float


def count(results: Sequence[CheckResult], outcome: Outcome) -> int:
    return sum(one.outcome == outcome for one in results)


def totals(results: Sequence[CheckResult]) -> dict[str, Any]:
    return {
        "checks": len(results) - count(results, "skipped"),
        "passed": count(results, "passed"),
        "failed": count(results, "failed"),
        "warnings": count(results, "warned"),
        "skipped": count(results, "skipped"),
        "seconds": round(sum(one.seconds for one in results), 2),
    }


def by_transport(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    """The results of each transport, in the order in which they first appear."""
    names = dict.fromkeys(one.transport for one in results)
    return {name: [one for one in results if one.transport == name] for name in names}


def summary(results: Sequence[CheckResult], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Totals of a suite, overall and per transport, and every result."""
    return {
        **totals(results),
        "engine": engine,
        "transports": {name: totals(rows) for name, rows in by_transport(results).items()},
        "results": [asdict(one) for one in results],
    }


def junit(results: Sequence[CheckResult], engine: Mapping[str, Any]) -> bytes:
    """A JUnit file: a suite per transport, a case per check with its reason and evidence.

    A warning is a case that passed and says so in its output.
    """
    name = "smoke of a rehearsal" if engine["rehearsal"] else "smoke"
    root = ElementTree.Element("testsuites", name=name)
    for transport, rows in by_transport(results).items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=f"smoke.{transport}",
            tests=str(len(rows)),
            failures=str(count(rows, "failed")),
            errors="0",
            skipped=str(count(rows, "skipped")),
            time=f"{sum(one.seconds for one in rows):.3f}",
        )
        for one in rows:
            _case(suite, one)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data


def _case(suite: ElementTree.Element, one: CheckResult) -> None:
    name, time = f"{one.id} {one.title}", f"{one.seconds:.3f}"
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"smoke.{one.transport}", name=name, time=time
    )
    # XML 1.0 has no control characters, not even escaped.
    evidence = "".join(letter if letter.isprintable() else " " for letter in one.evidence)
    if one.outcome == "failed":
        ElementTree.SubElement(case, "failure", message=evidence).text = f"reason: {one.reason}"
    elif one.outcome == "skipped":
        ElementTree.SubElement(case, "skipped", message=evidence)
    else:
        mark = "warning: " if one.outcome == "warned" else ""
        text = f"{mark}{evidence}\nreason: {one.reason}"
        ElementTree.SubElement(case, "system-out").text = text
