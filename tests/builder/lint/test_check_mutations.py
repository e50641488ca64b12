"""Mistakes made on purpose in valid files of every kind: which `check` reports, and how well."""

from __future__ import annotations

import copy
import functools
import random
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import lint as check
from builder import pipeline
from builder.diagnostics import Diagnostic
from builder.facts import release
from tests.conftest import ROOT
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

PBTXT = ROOT / "model_repository" / "tensorrt_llm" / "config.pbtxt"

REPORTED = 0.99
NAMED = 0.95

Keys = tuple[Any, ...]

ENGINE: dict[str, Any] = {
    "backend": "pytorch",
    "tensor_parallel_size": 8,
    "moe_expert_parallel_size": 4,
    "pipeline_parallel_size": 1,
    "max_batch_size": 64,
    "max_num_tokens": 8192,
    "max_seq_len": 4096,
    "enable_attention_dp": True,
    "enable_chunked_prefill": True,
    "disable_overlap_scheduler": False,
    "print_iter_log": True,
    "stream_interval": 10,
    "num_postprocess_workers": 4,
    "allreduce_strategy": "AUTO",
    "attention_dp_config": {"enable_balance": True, "batching_wait_iters": 0, "timeout_iters": 60},
    "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 2, 4, 8, 64]},
    "kv_cache_config": {
        "dtype": "fp8",
        "enable_block_reuse": False,
        "free_gpu_memory_fraction": 0.8,
        "tokens_per_block": 32,
        "event_buffer_max_size": 0,
    },
    "moe_config": {
        "backend": "CUTLASS",
        "max_num_tokens": 8192,
        "load_balancer": {"num_slots": 256, "layer_updates_per_iter": 1},
    },
    "speculative_config": {
        "decoding_type": "MTP",
        "num_nextn_predict_layers": 1,
        "relaxed_topk": 10,
        "relaxed_delta": 0.6,
    },
    "scheduler_config": {
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        "dynamic_batch_config": {
            "enable_batch_size_tuning": True,
            "enable_max_num_tokens_tuning": False,
            "dynamic_batch_moving_average_window": 128,
        },
    },
    "cache_transceiver_config": {"backend": "UCX", "max_tokens_in_buffer": 8192},
}

PREFILL = TABLES["PREFILL"]

DECODE = TABLES["DECODE"]

# Every kind of file as data, and the places in it that hold engine options.
FILES: dict[str, tuple[dict[str, Any], tuple[Keys, ...]]] = {
    "engine": (ENGINE, ((),)),
    "triton": (
        {
            "triton_config": {
                "max_batch_size": 0,
                "decoupled": True,
                "cancellation_check_period_ms": 100,
            },
            "model": "m",
            **{key: value for key, value in ENGINE.items() if key != "cache_transceiver_config"},
        },
        ((),),
    ),
    "disaggregated": (
        {
            "hostname": "localhost",
            "port": 8000,
            "max_retries": 3,
            "perf_metrics_max_requests": 100,
            "conditional_disagg_config": {"max_local_prefill_length": 100},
            "context_servers": {"num_instances": 1, "urls": ["one:1"], **PREFILL},
            "generation_servers": {
                "num_instances": 1,
                "urls": ["two:1"],
                "router": {"type": "kv_cache_aware"},
                **DECODE,
            },
        },
        (("context_servers",), ("generation_servers",)),
    ),
    "recipe": (
        {
            "name": "r",
            "resources": {"gpu_type": "b200"},
            "backend": {"type": "trtllm", "trtllm_config": {"prefill": PREFILL, "decode": DECODE}},
            "benchmark": {"isl": 1024, "osl": 1024},
        },
        (("backend", "trtllm_config", "prefill"), ("backend", "trtllm_config", "decode")),
    ),
}

# Keys that belong to the format itself and are checked too.
FORMAT_KEYS: dict[str, tuple[Keys, ...]] = {
    "triton": ((), ("triton_config",)),
    "disaggregated": ((), ("conditional_disagg_config",), ("context_servers",)),
}


@dataclass(frozen=True)
class Mutant:
    """A file with one mistake; `fix` is the name that the remedy must hold, if any."""

    group: str
    kind: str
    data: Any
    where: Keys
    fix: str = ""
    release: str = "1.2.1"
    alternatives: tuple[Keys, ...] = ()


def get(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data[key]
    return data


def changed(data: Any, keys: Keys, value: Any) -> Any:
    result = copy.deepcopy(data)
    get(result, keys[:-1])[keys[-1]] = value
    return result


def renamed(data: Any, keys: Keys, name: str) -> Any:
    result = copy.deepcopy(data)
    parent = get(result, keys[:-1])
    items = [(name if key == keys[-1] else key, value) for key, value in parent.items()]
    parent.clear()
    parent.update(items)
    return result


def paths(data: Any, keys: Keys) -> Iterator[Keys]:
    """Every key below a place, at any depth."""
    value = get(data, keys)
    for key in value if isinstance(value, dict) else ():
        yield (*keys, key)
        yield from paths(data, (*keys, key))


def engine_paths(kind: str) -> Iterator[tuple[Keys, Keys]]:
    """The place of the options, and each key below it."""
    data, places = FILES[kind]
    for place in places:
        for path in paths(data, place):
            inside = path[len(place) :]
            table = release.load("1.2.1")
            if ".".join(map(str, inside)) in table.paths:
                yield place, path


def misspellings(name: str, choice: random.Random) -> Iterator[str]:
    """One and two letters wrong: one left out, added, changed or swapped."""

    def once(text: str) -> str:
        at = choice.randrange(1, len(text))
        letter = choice.choice(string.ascii_lowercase + "_")
        return choice.choice(
            [
                text[:at] + text[at + 1 :],
                text[:at] + letter + text[at:],
                text[:at] + letter + text[at + 1 :],
                text[: at - 1] + text[at] + text[at - 1] + text[at + 1 :],
            ]
        )

    for _ in range(2):
        yield once(name)
    yield once(once(name))


def misspelt_keys() -> Iterator[Mutant]:
    choice = random.Random(7)
    for kind, (data, _) in FILES.items():
        keys = [path for _, path in engine_paths(kind)]
        for place in FORMAT_KEYS.get(kind, ()):
            keys += [path for path in paths(data, place) if len(path) == len(place) + 1]
        for path in dict.fromkeys(keys):
            siblings = get(data, path[:-1])
            for name in misspellings(path[-1], choice):
                if name not in siblings and name and not is_option(path, name):
                    mutant = renamed(data, path, name)
                    yield Mutant("misspelt key", kind, mutant, (*path[:-1], name), path[-1])


def is_option(path: Keys, name: str) -> bool:
    """Whether a misspelling happens to be another option."""
    known = release.load("1.2.1").paths
    return any(".".join((*map(str, path[i:-1]), name)) in known for i in range(len(path)))


WRONG = TABLES["WRONG"]


def wrong_types() -> Iterator[Mutant]:
    table = release.load("1.2.1")
    for kind, (data, _) in FILES.items():
        for place, path in engine_paths(kind):
            (field, *others) = table.paths[".".join(path[len(place) :])]
            for value in () if others else WRONG.get(field["type"], ()):
                yield Mutant("wrong type", kind, changed(data, path, value), path)


def out_of_bounds() -> Iterator[Mutant]:
    table = release.load("1.2.1")
    beyond = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    for kind, (data, _) in FILES.items():
        for place, path in engine_paths(kind):
            for field in table.paths[".".join(path[len(place) :])]:
                for bound, step in beyond.items():
                    if bound in field:
                        value = field[bound] + step
                        yield Mutant("out of bounds", kind, changed(data, path, value), path)


def other_releases() -> Iterator[Mutant]:
    """Options that exist in another release only, at their places."""
    here, there = release.load("1.2.1"), release.load("main-00043967")
    for kind, (data, places) in FILES.items():
        for place in places:
            for name in there.paths:
                keys = tuple(name.split("."))
                held = isinstance(get_or_none(data, (*place, *keys[:-1])), dict)
                if held and name not in here.paths and len(keys) <= 2 and "*" not in keys:
                    mutant = changed(data, (*place, *keys), 1)
                    yield Mutant("other release", kind, mutant, (*place, *keys))
        for place in places:
            for keys, value in (
                (("moe_config", "backend"), "AUTO"),
                (("moe_config", "backend"), "MARLIN"),
                (("speculative_config", "decoding_type"), "Eagle3"),
                (("cache_transceiver_config", "backend"), "default"),
            ):
                if get_or_none(data, (*place, *keys)) is not None:
                    mutant = changed(data, (*place, *keys), value)
                    yield Mutant("other release", kind, mutant, (*place, *keys))


def get_or_none(data: Any, keys: Keys) -> Any:
    try:
        return get(data, keys)
    except (KeyError, TypeError):
        return None


def misplaced() -> Iterator[Mutant]:
    """Options one level too high or too low, and whole blocks inside another."""
    for kind, (data, places) in FILES.items():
        for place, path in engine_paths(kind):
            if len(path) > len(place) + 1 and not is_option((*place, path[-1]), path[-1]):
                lifted = copy.deepcopy(data)
                get(lifted, place)[path[-1]] = get(lifted, path[:-1]).pop(path[-1])
                alternatives = ((*place, path[-1]),)
                yield Mutant(
                    "misplaced", kind, lifted, (*place, path[-1]), "", "1.2.1", alternatives
                )
        for place in places:
            for name in ("tensor_parallel_size", "moe_config", "cuda_graph_config"):
                block = "kv_cache_config"
                if name in get(data, place):
                    lowered = copy.deepcopy(data)
                    inner = get(lowered, place)
                    inner[block][name] = inner.pop(name)
                    yield Mutant("misplaced", kind, lowered, (*place, block, name), name)


# Relations that one changed value breaks: where, the value, and where it may be reported.
BROKEN: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("moe_expert_parallel_size", 3, ("moe_expert_parallel_size",)),
    ("moe_tensor_parallel_size", 3, ("moe_tensor_parallel_size", "moe_expert_parallel_size")),
    ("attention_dp_config.batching_wait_iters", -1, ("attention_dp_config",)),
    ("attention_dp_config.timeout_iters", -1, ("attention_dp_config",)),
    ("cuda_graph_config.max_batch_size", 7, ("cuda_graph_config",)),
    ("cuda_graph_config.batch_sizes", [1, 64, 2], ("cuda_graph_config",)),
    ("cuda_graph_config.batch_sizes", [1, 64, 64], ("cuda_graph_config",)),
    ("cuda_graph_config.batch_sizes", [1, 2, 2048], ("cuda_graph_config",)),
    ("max_num_tokens", 32, ("max_num_tokens", "max_batch_size")),
    ("moe_config.load_balancer.num_slots", 255, ("moe_config",)),
    ("kv_cache_config.dtype", "nvfp4", ("kv_cache_config.dtype",)),
    ("speculative_config.max_draft_len", 3, ("speculative_config",)),
    ("moe_config.backend", "WIDEEP", ("moe_config", "enable_attention_dp")),
    ("enable_attention_dp", False, ("attention_dp_config", "enable_attention_dp")),
    ("max_batch_size", 100_000, ("max_batch_size", "max_num_tokens", "cuda_graph_config")),
    ("stream_interval", 0, ("stream_interval",)),
)


def broken_relations() -> Iterator[Mutant]:
    for kind in ("engine", "triton"):
        data, ((),) = FILES[kind]
        for name, value, blamed in BROKEN:
            base = dict(data, enable_attention_dp=False) if value == "WIDEEP" else data
            keys = tuple(name.split("."))
            places = tuple(tuple(path.split(".")) for path in blamed)
            mutant = changed(base, keys, value)
            yield Mutant("broken relation", kind, mutant, keys, alternatives=places)
    data, _ = FILES["recipe"]
    decode: Keys = ("backend", "trtllm_config", "decode")
    for name, value in (
        ("cache_transceiver_config.backend", "NIXL"),
        ("kv_cache_config.dtype", "auto"),
        ("max_seq_len", 100),
        ("cache_transceiver_config.max_tokens_in_buffer", 100),
    ):
        keys = (*decode, *name.split("."))
        yield Mutant("broken relation", "recipe", changed(data, keys, value), keys)


GROUPS: dict[str, Callable[[], Iterator[Mutant]]] = {
    "misspelt key": misspelt_keys,
    "wrong type": wrong_types,
    "out of bounds": out_of_bounds,
    "other release": other_releases,
    "misplaced": misplaced,
    "broken relation": broken_relations,
}


@functools.lru_cache(maxsize=1)
def composed(text: str) -> Any:
    return yaml.compose(text, yaml.CSafeLoader)


def key_line(text: str, keys: Keys) -> int:
    """The line of a key by PyYAML's own marks."""
    node = composed(text)
    line = 1
    for key in keys:
        found = [(k, v) for k, v in node.value if k.value == str(key)]
        if not found:
            return line
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
    return line


def judged(folder: Path, texts: dict[str, str]) -> dict[str, list[Diagnostic]]:
    """The findings of many files at once, by file name."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    request = check.CheckOptions(("1.2.1",))
    rows: dict[str, list[Diagnostic]] = defaultdict(list)
    report = check.check([folder], request, pipeline.deployment_diagnostics)
    assert len(report.files) == len(texts), "every file was recognised"
    for row in report.findings:
        rows[Path(row.where).name].append(row)
    return rows


@pytest.mark.parametrize("kind", FILES)
def test_the_files_are_right_before_they_are_changed(kind: str, tmp_path: Path) -> None:
    rows = judged(tmp_path, {"f.yaml": yaml.safe_dump(FILES[kind][0], sort_keys=False)})
    assert [str(row) for row in rows["f.yaml"] if row.severity == "error"] == []


def test_mistakes_are_reported_where_they_are_and_with_the_right_name(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    mutants = [mutant for make in GROUPS.values() for mutant in make()]
    texts = {
        f"{index:05}.yaml": yaml.dump(mutant.data, Dumper=yaml.CSafeDumper, sort_keys=False)
        for index, mutant in enumerate(mutants)
    }
    rows = judged(tmp_path, texts)
    before = {
        kind: {
            (row.path, row.rule)
            for row in judged(fresh(tmp_path, kind), {"f.yaml": yaml.safe_dump(data)})["f.yaml"]
        }
        for kind, (data, _) in FILES.items()
    }
    total, reported, named = Counter[str](), Counter[str](), Counter[str]()
    missed = []
    for (name, text), mutant in zip(texts.items(), mutants, strict=True):
        total[mutant.group] += 1
        new = [row for row in rows[name] if (row.path, row.rule) not in before[mutant.kind]]
        hits = [row for row in new if hit(row, mutant, text)]
        reported[mutant.group] += bool(hits)
        named[mutant.group] += any(mutant.fix in row.fix for row in hits)
        if not hits or not any(mutant.fix in row.fix for row in hits):
            missed.append((mutant.group, mutant.kind, mutant.where, [str(row) for row in new]))
    for group in GROUPS:
        record_property(f"{group}: mutants", total[group])
        record_property(f"{group}: reported", reported[group])
        print(f"{group:<16} {total[group]:>5} mutants, {reported[group]:>5} reported", end="")
        print(f", {named[group]:>5} with the right name" if group == "misspelt key" else "")
    print(*missed[:40], sep="\n")
    assert min(total.values()) >= 15
    assert sum(reported.values()) >= REPORTED * sum(total.values())
    assert named["misspelt key"] >= NAMED * total["misspelt key"]


def fresh(folder: Path, name: str) -> Path:
    (folder / f".{name}").mkdir()
    return folder / f".{name}"


def hit(row: Diagnostic, mutant: Mutant, text: str) -> bool:
    """Whether a finding blames the mistake, at its line."""
    path = tuple(row.path.split("."))
    for keys in (mutant.where, *mutant.alternatives):
        wanted = tuple(map(str, keys))
        if path[: len(wanted)] == wanted and row.location.line >= key_line(text, keys):
            exact = path != wanted or row.location.line == key_line(text, keys)
            if exact:
                return True
    return False


def test_every_misspelt_field_of_a_model_configuration_is_reported(tmp_path: Path) -> None:
    """In config.pbtxt, with line and column; of its many tensors, in some."""
    choice = random.Random(3)
    lines = PBTXT.read_text().splitlines()
    total = reported = named = 0
    seen = Counter[str]()
    for index, line in enumerate(lines):
        word = line.strip().partition(":")[0].partition(" ")[0]
        seen[word] += 1
        if not word.isidentifier() or seen[word] > 24:
            continue
        for name in misspellings(word, choice):
            if name == word or not name.isidentifier():
                continue
            text = "\n".join([*lines[:index], line.replace(word, name, 1), *lines[index + 1 :]])
            path = tmp_path / "config.pbtxt"
            path.write_text(text)
            report = check.check([path], check.CheckOptions(), pipeline.deployment_diagnostics)
            rows = [row for row in report.findings if row.location.line == index + 1]
            total += 1
            reported += any(row.path.endswith(name) for row in rows)
            named += any(word in row.fix for row in rows if row.path.endswith(name))
    print(f"{total} mutants, {reported} reported, {named} with the right name")
    assert total > 200
    assert reported >= REPORTED * total
    assert named >= NAMED * total
