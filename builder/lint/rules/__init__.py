"""Registers the rules that `check` can report, grouped by subject.

SARIF, code quality reports and the table in docs/linting.md take titles and severities from here.
Rules that are defined in data files, for engines and for job scripts, keep their texts there;
`every` lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from ... import general_rules
from ...diagnostics import Diagnostic, Location, located
from ...documents import DATA
from ...facts import data_file, engines, plain_data
from ...general_rules import Rule, rules_in
from ...rules import constraints
from ...rules.constraints import Constraint

# Files
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
HERE_DOCUMENT_END = Rule(
    "here-document-end",
    "The line that should end a here document does not, so that it swallows commands.",
)
# Names
MISSPELT_NAME = Rule("misspelt-name", "A key, section or program is misspelt, and is not read.")
UNKNOWN_REFERENCE = Rule(
    "unknown-reference", "An object refers to another one of the manifest by a name that none has."
)
# Options
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
EXCLUSIVE_KEYS = Rule("exclusive-keys", "Only one of these keys may be used.")
TOO_MANY_FAULTS = Rule("too-many-faults", "There are more faults than are worth listing.")
GUIDE_IGNORED = Rule(
    "guide-ignored",
    "Requests ask for structured output, which the server does not provide as configured.",
    "warning",
)
DRIFT = Rule("drift", "What is right for one engine release is wrong for another.", "warning")
# Commands
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
LOST_FLAG = Rule(
    "lost-flag", "A flag stands outside of the command that it is meant for, and is lost."
)
MISSING_MODEL = Rule("missing-model", "A server is started without a model.")
# Model
UNKNOWN_MODEL = Rule(
    "unknown-model",
    "No facts are known for a model, so that no rule about models was checked.",
    "warning",
)
MODEL_ON_GPU = Rule("model-on-gpu", "The GPU has no arithmetic for the checkpoint's precision.")
MODEL_PRECISION = Rule(
    "model-precision", "The file names another precision than the checkpoint has.", "warning"
)
# Ports
PORT_UNREACHED = Rule(
    "port-unreached", "A port is opened, published or asked at which no server listens.", "warning"
)
PORT_TAKEN = Rule("port-taken", "Two servers want the same port of one machine.")
UNKNOWN_PROBE = Rule(
    "unknown-probe", "A probe asks for a path that the server does not have.", "warning"
)
# Start
SMALL_SHARED_MEMORY = Rule(
    "small-shared-memory",
    "Several ranks share the little shared memory that a container has by default.",
    "warning",
)
START_LIMIT = Rule(
    "start-limit", "A probe ends the server before its weights can be loaded.", "warning"
)
# GPUs
UNKNOWN_GPU = Rule("unknown-gpu", "No known GPU has this name.")
GPUS_BELOW_RANKS = Rule(
    "gpus-below-ranks", "A server has fewer GPUs than ranks and does not start."
)
GPUS_IDLE = Rule("gpus-idle", "More GPUs are requested than the servers have ranks.", "warning")
GPU_SHARED = Rule(
    "gpu-shared", "Two servers use the same GPU, and each takes most of its memory.", "warning"
)
GPU_REQUEST = Rule(
    "gpu-request", "Kubernetes wants the same number of GPUs as request and as limit."
)
NODE_GPUS = Rule("node-gpus", "A node has fewer GPUs than the file says.", "warning")
# Variables
MISSPELT_VARIABLE = Rule(
    "misspelt-variable",
    "A variable of the engine or its libraries is misspelt, and is not read.",
    "warning",
)
UNKNOWN_VARIABLE = Rule(
    "unknown-variable", "The release reads no environment variable of this name.", "warning"
)
VARIABLE_VALUE = Rule(
    "variable-value", "A variable of the engine has a value that it does not know.", "warning"
)
# Sides
DISAGG_MODE = Rule("disagg-mode", "A prefill or decode worker has the settings of the other side.")
DISAGG_MODEL = Rule(
    "disagg-model", "The two sides of a disaggregated service have different models."
)
INSTANCES_URLS = Rule(
    "instances-urls", "A disaggregated server lists each of its instances once, by its address."
)
URL = Rule("url", "Servers are named as host:port.")
ROUTER_BLOCKS = Rule(
    "router-blocks",
    "The router looks for KV cache blocks of another size than the engine has.",
    "warning",
)
# Triton
DUPLICATE_NAME = Rule("duplicate-name", "Two tensors of one model have the same name.")
TRITON_CONFIG_OVERRIDE = Rule(
    "triton-config-override", "A setting of the model is where Triton does not look for it."
)
TRITON_DATA_TYPE = Rule(
    "triton-data-type", "A tensor has another data type than the backend expects."
)
TRITON_INPUT_REQUIRED = Rule("triton-input-required", "The backend needs this input.", "warning")
TRITON_INSTANCE_GROUP = Rule(
    "triton-instance-group",
    "The LLM API runs one instance of its model, which places itself on the GPUs.",
)
TRITON_MODEL_NAME = Rule("triton-model-name", "The name of a model must be that of its folder.")
RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule for rule in rules_in((*vars(general_rules).values(), *globals().values()))
}
"""The rules that are implemented in code, by id."""


def job_diagnostic(
    rule: str, place: Location, what: str, path: str = "", remedy: str = ""
) -> Diagnostic:
    """A diagnostic of a job script rule at a place in the script."""
    known = job_rules()[rule]
    return located(
        place, path, what, remedy or known.docs.partition("\n")[0], known, known.severity
    )


@cache
def job_rules() -> Mapping[str, Rule]:
    """The rules of job scripts by id."""
    table = data_file.load(DATA / "formats" / "job_scripts.yaml", plain_data.JOB_SCRIPTS_FILE)
    return {
        id: Rule(
            id,
            f"A job script of Slurm: {row['fix']}.",
            row["severity"],
            "\n\nSource: ".join(filter(None, (row["fix"], row.get("source")))),
        )
        for id, row in table["rules"].items()
    }


@cache
def every() -> Mapping[str, Rule]:
    """Every rule that `check` can report, by id."""
    found = {**RULES, **job_rules()}
    rows: dict[str, list[Constraint]] = {}
    for name in engines.names():
        for row in constraints.every(engines.load(name)):
            rows.setdefault(row.id, []).append(row)
    for id, each in rows.items():
        rule = found.get(id, each[0].rule)
        own = (rule.docs,) if id in found else ()
        docs = "\n".join(dict.fromkeys((*own, *(row.rule.docs for row in each))))
        found[id] = Rule(id, rule.title, rule.severity, docs)
    return found


def markdown() -> Iterator[str]:
    """The lines of the table of rules that are not about single options."""
    yield "| rule | usually | what is wrong |"
    yield "|---|---|---|"
    for id, rule in sorted({**RULES, **job_rules()}.items()):
        yield f"| `{id}` | {rule.severity} | {rule.title} |"
