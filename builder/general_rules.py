"""The rule, and the rules about texts, keys, values and versions that every layer checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Severity = Literal["error", "warning"]


class Rule(str):
    """The id of a rule, with its title, its default severity and its description in Markdown."""

    __slots__ = ("docs", "severity", "title")

    title: str  # type: ignore[assignment]  # and not the method of text
    severity: Severity
    docs: str

    def __new__(
        cls, id: str, title: str = "", severity: Severity = "error", docs: str = ""
    ) -> Rule:
        made = super().__new__(cls, id)
        made.title, made.severity, made.docs = title, severity, docs or title
        return made

    @property
    def id(self) -> str:
        return str(self)


def rules_in(names: Iterable[object]) -> tuple[Rule, ...]:
    """The rules among the values of a module."""
    return tuple(value for value in names if isinstance(value, Rule) and value)


NO_RULE = Rule("")
INVALID = Rule("invalid", "The file does not have the form that its format asks for.")
SYNTAX = Rule("syntax", "The text cannot be read as what its name says it is.")
DUPLICATE_KEY = Rule("duplicate-key", "A key or flag is given twice, and only one value counts.")
MISSING_KEY = Rule("missing-key", "A required key is missing.")
UNKNOWN_KEY = Rule("unknown-key", "The release does not have this option and refuses the file.")
UNCERTAIN_KEY = Rule(
    "uncertain-key", "It is not known whether the release has this option.", "warning"
)
DEPRECATED = Rule("deprecated", "The release still takes the option and will drop it.", "warning")
UNKNOWN_VALUE = Rule("unknown-value", "The option does not take this value.")
VALUE_TYPE = Rule("value-type", "The value is of another type than the option takes.")
VALUE_RANGE = Rule("value-range", "The value is outside the range that the option takes.")
VALUE = Rule("value", "The values of a data file do not fit together.")
CREDENTIAL = Rule("credential", "The file holds a credential.")
DEPLOYMENT = Rule("deployment", "A deployment file cannot be planned, or its plan has a warning.")
PARSER_MISMATCH = Rule(
    "parser-mismatch",
    "A parser of answers does not read what the model's chat template writes.",
    "warning",
)
UNPUBLISHED_RELEASE = Rule("unpublished-release", "No release of this name was published.")
RELEASE_WITHOUT_TABLE = Rule(
    "release-without-table",
    "What the release accepts is taken from the option tables of the releases around it.",
    "warning",
)
IMAGE_OF_ANOTHER_RELEASE = Rule(
    "image-of-another-release",
    "The name of an image tells another engine release than the deployment has.",
    "warning",
)
VULNERABLE_VERSION = Rule(
    "vulnerable-version",
    "An engine or server version has known vulnerabilities.",
    "error",
    "An engine or server version has known vulnerabilities. `python -m builder advisories` lists "
    "them. A version below the minimum is refused, and so is one with a critical vulnerability "
    "that a stable version has fixed, unless the deployment accepts it with a reason in "
    "`accepted_advisories`.",
)
UNKNOWN_VERSION = Rule(
    "unknown-version",
    "The version of an engine or server is unknown or cannot be compared.",
    "warning",
    "The name of an image does not tell which version of an engine or server it holds, or a "
    "version cannot be compared with others: whether it has known vulnerabilities is unknown. "
    "Name the publisher's version, with a digest too. `--strict`, or `strict: true` in the "
    "deployment, refuses it, unless it is accepted as version `unknown` in `accepted_advisories`.",
)
STALE_ADVISORIES = Rule(
    "stale-advisories", "The advisories are old, and newer ones are missing.", "warning"
)
