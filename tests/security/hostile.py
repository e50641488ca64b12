"""Hostile texts, every string of a deployment file that can hold one, and what must not happen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any, Union

import yaml
from markdown_it import MarkdownIt
from ruamel.yaml import YAML

from builder import schema, targets
from builder.deployment import Deployment
from builder.schema import Bounds, Strict, fields_of
from builder.site import Site
from tests.conftest import ROOT

SEED = 20261122
CANARY = "canary"  # a file of this name is there if a shell has run a text

# One text of each language in which a value may become more than a value.
HOSTILE = {
    "shell": f"x$(touch {CANARY})`touch {CANARY}`';touch {CANARY};\"&&tee {CANARY}|tee {CANARY}\\",
    "lines": f"x\ntouch {CANARY}\r\n#SBATCH --wrap=x\n- item: x\n  trust_remote_code: true\n\ty",
    "yaml": "x: y # z\n? a\n: b\n--- \n&anchor *alias !!python/object/apply:os.system [ls]",
    "html": "</code></pre></style><script>alert(1)</script><img src=x onerror=alert(1)>&lt;",
    "markdown": "x | y `z` ``` **b** [l](javascript:alert(1)) ![i](x)\n# head\n| a |\n| - |\n<b>",
    "jinja": "{{ 7 * 7 }}{% for x in ().__class__.__mro__ %}{{ x }}{% endfor %}{# c #}",
    "promql": 'x"} or vector(1) or up{a="\\"\n}} {{ query "up" }} $value {{ $labels.x }}',
    "letters": "\u2028\x85\u00a0\u202e\ufeffé漢\x07\x1b[31m\t'\"",
}
# Texts that YAML 1.1, YAML 1.2 or JSON readers take for something else.
AMBIGUOUS = (
    *("on", "off", "yes", "No", "y", "~", "null", "", " ", "true", "1:30", "1.10", "0o17", "017"),
    *("0x1F", "1_000", "1e3", "1E3", ".5", "+.5e1", ".inf", ".NaN", "-", "=", "<<", "2026-11-22"),
    *("!tag", "@a", "%a", "# a", "a #b", "a: b", "? a", "- a", "[a]", "{a}", "|", ">", "'", '"'),
)
_PARTS = (
    *(f"$(touch {CANARY})", f"`touch {CANARY}`", f";touch {CANARY};", "${HOME}", "\\", "\\n"),
    *("'", '"', "\n", "\r", "\t", "\x00", "\x1b", "\u2028", "\x85", "é", "漢", "😀", " ", "#"),
    *("{{", "}}", "{%", "%}", "<b>", "</script>", "&", "|", ">", "<", "*", "?", "!", "~", "^"),
    *(": ", "- ", "---", "..", "../", "/", "a", "Z", "0", "9", ".", "_", "@", "=", "+", ",", "%"),
    *("[", "]", "(", ")", "-", "--wrap=x", "on", "1:30", "0o17", "1e3", "null", "x" * 70),
)


def names(count: int) -> list[str]:
    """So many different texts, the same ones every time; a third of them is nearly harmless."""
    source, found = random.Random(SEED), dict[str, None]()
    harmless = "abcdefghijklmnopqrstuvwxyz0123456789-._"
    while len(found) < count:
        parts = source.choices(_PARTS, k=source.randint(1, 6))
        if source.random() < 0.33:
            parts = source.choices(harmless, k=source.randint(1, 12))
            parts += source.choices(_PARTS, k=source.randint(0, 1))
        found["".join(parts)] = None
    return list(found)


@dataclass(frozen=True, slots=True)
class Text:
    """A string of a deployment file: its dotted path, and the rule that it must follow, if any.

    `key` marks the key of a mapping.
    """

    path: str
    pattern: str | None
    longest: int | None
    key: bool = False


MODELS: Mapping[str, type[Strict]] = {
    "": Deployment,
    **{f"targets.{name}": targets.options_type(name) for name in targets.names()},
    "targets.slurm.site": Site,
}


def texts() -> Iterator[Text]:
    """Every string that any part of a deployment file can hold, read from its schemas."""
    for path, model in MODELS.items():
        yield from _texts(model, path)


def _texts(kind: Any, path: str, limits: Bounds | None = None, key: bool = False) -> Iterator[Text]:
    origin, inner = schema.shape(kind)
    if origin is Annotated:
        given = [note for note in inner[1:] if isinstance(note, Bounds)]
        pattern = next((note.pattern for note in given if note.pattern), None)
        longest = next((note.max_length for note in given if note.max_length), None)
        yield from _texts(inner[0], path, Bounds(pattern=pattern, max_length=longest), key)
    elif origin is Union:
        for one in inner:
            yield from _texts(one, path)
    elif origin is dict and inner[1] is not Any:
        yield from _texts(inner[0], f"{path}{{}}", key=True)
        yield from _texts(inner[1], f"{path}.*")
    elif origin is list:
        yield from _texts(inner[0], f"{path}[]")
    elif isinstance(origin, type) and issubclass(origin, Strict):
        for name, (field, _) in fields_of(origin).items():
            yield from _texts(field, f"{path}.{name}".strip("."))
    elif origin is str:
        rule = limits or Bounds()
        yield Text(path, rule.pattern, rule.max_length, key)


def request(value: str, printable: str) -> dict[str, Any]:
    """A deployment for every target, with the value in each string that takes any text.

    `printable` stands where only printable ASCII is taken.
    """
    site = yaml.safe_load((ROOT / "tests/golden/site.yaml").read_text())
    site["environment"] = {"SITE_VALUE": printable}
    site["checkpoints"] = {f"name {value}": "/models/x"}
    container = {"server": "triton"}
    volume = {"csi": {"driver": "csi.example", "attributes": {"share": printable}}}
    gateway = {"image": "registry.example/haproxy:3.0", "tls_secret": "gateway"}
    kubernetes = {**container, "model": volume, "gateway": gateway, "kserve": True}
    return {
        "name": "hostile",
        "checkpoint": "nvidia/DeepSeek-V3.2-NVFP4",
        "draft": {"checkpoint": f"draft {value}", "tokens": 2},
        "hardware": {"gpu": "gb200", "num_gpus": 4},
        "engine": {"release": "1.2.1"},
        "workload": {"isl": 800, "osl": 1600, "concurrency": 64},
        "slo": {"ttft_ms": 1000, "itl_ms": 20},
        "engine_config": {"enable_attention_dp": False},
        "choice": {
            "objective": "latency",
            "reason": f"the best {value}",
            "source": f"rows {value}",
            "settings": {"enable_attention_dp": False},
            "estimate": {},
        },
        "notes": [f"note {value}"],
        "environment": {"MY_VALUE": value},
        "accepted_advisories": [
            {"product": "tensorrt_llm", "version": "1.2.1", "reason": f"the reason is {value}"}
        ],
        "targets": {
            "trtllm_serve": {},
            "triton": {"key_file": "/run/key"},
            "slurm": {"site": site, "server": "triton"},
            "kubernetes": kubernetes,
            "compose": container,
            "monitoring": {},
            "handoff": {},
        },
    }


def printable(value: str) -> str:
    return "".join(letter for letter in value if " " <= letter <= "~")


def yaml_1_1(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def yaml_1_2(text: str) -> list[Any]:
    return [_plain(document) for document in YAML(typ="safe", pure=True).load_all(text)]


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _plain(value) for key, value in node.items()}
    return [_plain(item) for item in node] if isinstance(node, list) else node


def shape(node: Any) -> Any:
    """The structure of data: its keys and the types of its values."""
    if isinstance(node, Mapping):
        return {key: shape(value) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [shape(item) for item in node]
    return type(node).__name__


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append(f"{tag} {sorted(name for name, _ in attributes)}")

    def handle_endtag(self, tag: str) -> None:
        self.found.append(f"/{tag}")


def html_tags(text: str) -> list[str]:
    """The elements of a page with the names of their attributes."""
    parser = _Tags()
    parser.feed(text)
    return parser.found


def markdown_blocks(text: str) -> list[str]:
    """The elements of a Markdown text, but for runs of plain text and of code."""
    reader = MarkdownIt("commonmark").enable("table")
    tokens = [part for token in reader.parse(text) for part in (token, *(token.children or ()))]
    plain = ("text", "softbreak", "hardbreak", "code_inline")
    return [token.type for token in tokens if token.type not in plain]


def files(folder: Path, *suffixes: str) -> dict[str, str]:
    """The text files of a bundle with these suffixes."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in suffixes)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}
