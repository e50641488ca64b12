"""Whether options agree with each other, with the model, the GPU, the workload and the flags.

The rules are rows of `builder/data/rules.yaml`; a release's table lists those that it adds to the
ones of all releases. Options with unknown keys or values of a wrong type are another module's
business: a rule that cannot judge them stays silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...diagnostics import Diagnostic
from .flags import SERVE, flag_faults, flag_traps, option_path, spellings, with_flags
from .rules import Rule, rows, same
from .rules import broken as _broken
from .situation import Situation
from .values import View

__all__ = [
    "SERVE",
    "Rule",
    "Situation",
    "broken",
    "disagreements",
    "flag_faults",
    "flag_traps",
    "option_path",
    "rows",
    "spellings",
    "with_flags",
]


def broken(
    options: Mapping[str, Any], situation: Situation, strict: bool = False
) -> Iterator[Diagnostic]:
    """Every rule that these options break; `where` is the dotted path of the value to blame.

    With `strict`, a value that the engine ignores is an error instead of a warning.
    """
    return _broken(View(options, situation), strict)


def disagreements(
    prefill: Mapping[str, Any], decode: Mapping[str, Any], situation: Situation
) -> Iterator[Diagnostic]:
    """What a prefill and a decode worker must have in common and have not.

    `where` is the path in the decode worker's options.
    """
    one, two = View(prefill, situation), View(decode, situation)
    for rule in rows("agreements"):
        if not any(rule.applies(view) for view in (one, two)):
            continue
        values = {"prefill": one.value(rule.agree), "decode": two.value(rule.agree)}
        if same(values["prefill"], values["decode"]) is False:
            where = rule.where or rule.agree.removeprefix("effective.")
            yield rule.problem(where, values.__getitem__)
