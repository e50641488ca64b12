"""Declares the rules that readers of files report, and rules that several modules share.

Any other rule is declared in the module that checks it; `registry` gathers them all.
"""

from __future__ import annotations

from ...general_rules import Rule

DAMAGED_BUNDLE = Rule(
    "damaged-bundle", "A file of a bundle is not the one that its manifest lists."
)
EMPTY_FILE = Rule("empty-file", "The file is empty.")
INTERNAL_ERROR = Rule(
    "internal-error", "The toolkit itself failed on this file; all other files were checked."
)
UNREADABLE = Rule("unreadable", "The file cannot be read.")
UNKNOWN_KIND = Rule("unknown-kind", "The file is of no kind that check reads.", "warning")
NOTHING_TO_JUDGE = Rule(
    "nothing-to-judge",
    "The file has no engine options and starts no server: nothing in it was checked.",
    "warning",
)
MISSPELT_NAME = Rule("misspelt-name", "A key, section or program is misspelt, and is not read.")
AUTODEPLOY_BACKEND = Rule(
    "autodeploy-backend",
    "Options of the AutoDeploy backend work with that backend only.",
    "warning",
)
AUTODEPLOY_PARALLEL = Rule(
    "autodeploy-parallel",
    "The AutoDeploy backend spreads a model by `world_size` alone.",
)
CONFLICTING_VALUES = Rule("conflicting-values", "Two settings of one file contradict each other.")
UNKNOWN_FLAG = Rule("unknown-flag", "The program has no flag of this name.")
FLAG_VALUE = Rule("flag-value", "The flag does not take this value.")
FLAG_WITHOUT_VALUE = Rule("flag-without-value", "The flag needs a value.")
FLAG_ABBREVIATED = Rule(
    "flag-abbreviated",
    "A shortened flag works as long as no other flag begins with the same letters.",
    "warning",
)
STRAY_WORD = Rule(
    "stray-word", "A word of a command belongs to no flag, and the server refuses it."
)
INSTANCES_URLS = Rule(
    "instances-urls", "A disaggregated server lists each of its instances once, by its address."
)
URL = Rule("url", "Servers are named as host:port.")
