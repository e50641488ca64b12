"""Hostile files and arguments: each ends soon, in little memory, with a plain error."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.errors import BadInput
from builder.estimates import own_runs
from tests.conftest import ROOT
from tests.security.attacks import listen, survive

DEEP = 100_000
Make = Callable[[Path], object]


def of_bytes(data: bytes) -> Make:
    return lambda path: path.write_bytes(data)


def repeated(begin: bytes, part: bytes, times: int, end: bytes = b"") -> Make:
    """A file that is made where it is needed: those that are large take no memory before."""
    return lambda path: path.write_bytes(begin + part * times + end)


def numbered(row: bytes, count: int) -> Make:
    return lambda path: path.write_bytes(b"".join(row % number for number in range(count)))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


# In the place of any file.
NO_FILES: Mapping[str, Make] = {
    "a pipe": os.mkfifo,
    "a socket": listen,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a file that has nothing yet": lambda path: path.symlink_to("/proc/kmsg"),
    "a file of a terabyte": sparse,
    "an empty file": of_bytes(b""),
    "bytes": of_bytes(bytes(range(256)) * 64),
    "zeros": of_bytes(bytes(100_000)),
    "UTF-16": of_bytes("name: x\n".encode("utf-16")),
}
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
# In the place of a YAML file.
YAML: Mapping[str, Make] = {
    "an alias of itself": of_bytes(b"a: &a [*a]\n"),
    "a Python object": of_bytes(b"a: !!python/object/apply:os.system [id]\n"),
    "a number of letters": of_bytes(b"a: !!int abc\n"),
    "a number of nothing": of_bytes(b'a: !!int ""\n'),
    "a hexadecimal without digits": of_bytes(b"a: 0x_\n"),
    "a fraction of letters": of_bytes(b"? !!float abc\n: 1\n"),
    "a truth of no kind": of_bytes(b"a: !!bool maybe\n"),
    "a list": of_bytes(b"- 1\n- 2\n"),
    "a scalar": of_bytes(b"42\n"),
    "keys that are lists": of_bytes(b"? [a, b]\n: 1\n? {c: d}\n: 2\n"),
    "escape sequences": of_bytes(b'name: "\\e[2J\\e[31mok"\n'),
    "escape sequences as keys": of_bytes(b'"\\e[2Jname\\nok: fine": 1\n'),
    "lone surrogates": of_bytes(b'name: "\\ud800"\n'),
    "a key that turns the direction": of_bytes('"\u202egpj.x": 1\n'.encode()),
    "a key of no width": of_bytes('"na\u200bme": x\n"na\ufeffme": y\n'.encode()),
    "a mark of order in the middle": of_bytes(b"a: 1\n\xef\xbb\xbfb: 2\n"),
    "NUL in a key": of_bytes(b'"na\\0me": 1\n'),
    "bare NUL": of_bytes(b"name: a\0b\n"),
    "a day of no calendar": of_bytes(b"a: 2026-99-99T99:99:99Z\n"),
    "a year of no clock": of_bytes(b"a: 9999-12-31T23:59:59.999999999999999999-99:99\n"),
    "another version of YAML": of_bytes(b"%YAML 9.9\n---\nname: x\n"),
    "a set": of_bytes(b"!!set {a, b, c}\n"),
    "pairs": of_bytes(b"a: !!pairs [{a: 1}, {a: 2}]\n"),
    "a merge of a text": of_bytes(b"<<: x\n"),
    "an alias before its anchor": of_bytes(b"a: *b\nb: &b 1\n"),
    "a mapping in a key in a key": of_bytes(b"? {? {a: 1} : 2}\n: 3\n"),
    "tabs": of_bytes(b"a:\n\t- b\n"),
    "infinity": of_bytes(b"name: .inf\nhardware: {num_gpus: -.inf}\n"),
}
# The same, and the reader of all YAML files refuses it or takes long.
LARGE_YAML: Mapping[str, Make] = {
    "deep lists": repeated(b"a: ", b"[", DEEP),
    "deep mappings": repeated(b"", b"{a: ", DEEP),
    "deep by indentation": of_bytes("".join(f"{' ' * n}a:\n" for n in range(2_000)).encode()),
    "aliases of aliases": of_bytes(ALIASES.encode()),
    "merges of merges": of_bytes(
        ("a: &a {x: 1}\n" + "b: {<<: [" + "*a," * 50_000 + "]}\n").encode()
    ),
    "too many values": repeated(b"[", b"1,", 110_000, b"]"),
    "empty lists without end": repeated(b"[", b"[],", 300_000, b"]"),
    "too many keys": numbered(b"k%d: 1\n", 110_000),
    "a key of a megabyte": repeated(b"? ", b"x", 1_000_000, b"\n: 1\n"),
    "a text of 2 MB": repeated(b"name: ", b"x", 2_000_000),
    "spaces": repeated(b"", b" ", 2_000_000),
    "dashes": repeated(b"", b"- ", 200_000),
    "question marks": repeated(b"", b"? ", 100_000),
    "a number of a million digits": repeated(b"a: ", b"9", 1_000_000),
    "a float of a million digits": repeated(b"a: 0.", b"9", 1_000_000),
    "a base 60 number": repeated(b"a: ", b"59:", 100_000, b"59\n"),
    "many documents": repeated(b"", b"--- {}\n", 100_000),
    "a base 60 fraction": repeated(b"a: ", b"59:", 400, b"59.5\n"),
    "a key of 3,900 hexadecimal digits": repeated(b"? 0x", b"f", 3_900, b"\n: 1\n"),
    "a binary": repeated(b"a: !!binary ", b"A", 1_000_000),
    "anchors": numbered(b"- &a%d x\n", 110_000),
    "a comment of 2 MB": repeated(b"# ", b"x", 2_000_000, b"\n"),
    "a hexadecimal of 100,000 digits": repeated(b"a: 0x", b"f", 100_000),
    "an octal of 100,000 digits": repeated(b"a: 0o", b"7", 100_000),
    "a binary of 100,000 digits": repeated(b"a: 0b", b"1", 100_000),
    "a tag of a megabyte": repeated(b"a: !<", b"x", 1_000_000, b"> 1\n"),
}
# In the place of a JSON file.
JSON: Mapping[str, Make] = {
    "deep lists": repeated(b"", b"[", DEEP),
    "deep objects": repeated(b"", b'{"a":', DEEP),
    "deep and closed": of_bytes(b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    "not a number": of_bytes(b'{"architectures": NaN}'),
    "a list": of_bytes(b"[]"),
    "a text": of_bytes(b'"x"'),
    "null": of_bytes(b"null"),
    "a list as name": of_bytes(b'{"architectures": [[]]}'),
    "an object as name": of_bytes(b'{"architectures": [{}]}'),
    "an unknown name": of_bytes(b'{"architectures": ["\\u001b[2JX\\nok: fine"]}'),
}
LARGE_JSON: Mapping[str, Make] = {
    "empty lists of 45 MB": repeated(b"[", b"[],", 15_000_000, b"[]]"),
    "empty objects of 45 MB": repeated(b'{"a": [', b"{},", 15_000_000, b"{}]}"),
    "a number of a million digits": repeated(b'{"architectures": ', b"9", 1_000_000, b"}"),
    "a long name": of_bytes(b'{"architectures": ["' + b"x" * 1_000_000 + b'"]}'),
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MIXTURE = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
# Fields of a `config.json` that nobody can compute with.
FIELDS: Mapping[str, dict[str, Any]] = {
    "a billion layers": {**LLAMA, "num_hidden_layers": 10**9},
    "layers beyond any number": {**LLAMA, "num_hidden_layers": 10**300},
    "no layer": {**LLAMA, "num_hidden_layers": 0},
    "layers below none": {**LLAMA, "num_hidden_layers": -1},
    "layers that are true": {**LLAMA, "num_hidden_layers": True},
    "half a layer": {**LLAMA, "num_hidden_layers": 2.5},
    "layers as text": {**LLAMA, "num_hidden_layers": "2"},
    "layers as list": {**LLAMA, "num_hidden_layers": [2]},
    "a hidden size of 10^30": {**LLAMA, "hidden_size": 10**30},
    "a head of 10^18": {**LLAMA, "head_dim": 10**18},
    "a vocabulary of 10^18": {**LLAMA, "vocab_size": 10**18},
    "more heads than channels": {**LLAMA, "num_attention_heads": 1_000},
    "a million experts": {**MIXTURE, "num_experts": 10**6},
    "experts in every layer": {**MIXTURE, "num_experts": 4_000, "num_hidden_layers": 999},
    "a quantization that is a list": {**LLAMA, "quantization_config": [1]},
    "a method that is a list": {**LLAMA, "quantization_config": {"quant_method": [1]}},
    "excluded modules that hang": {
        **LLAMA,
        "quantization_config": {"quant_algo": "NVFP4", "ignore": ["*a" * 30 + "b"] * 20},
    },
    **{
        f"excluded modules that hang as {expression}": {
            **LLAMA,
            "quantization_config": {"quant_algo": "NVFP4", "ignore": [f"re:{expression}"]},
        }
        for expression in (
            "(.*)*!",
            "(.|..)+!",
            ".*" * 30 + "!",
            ".?" * 60 + "!",
            "(.|.)" * 40 + "!",
        )
    },
    "a text config of another kind": {
        **MIXTURE,
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": [],
    },
}


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def tensor(shape: Any, offsets: Any = (0, 4), dtype: Any = "F32", name: str = "w") -> bytes:
    row = {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}
    return safetensors(json.dumps({name: row}).encode(), b"\0" * 4)


WEIGHTS: Mapping[str, Make] = {
    **NO_FILES,
    "a shape of 200,000 numbers": of_bytes(tensor([2] * 200_000)),
    "a shape of huge numbers": of_bytes(tensor([10**4000] * 8)),
    "a shape below none": of_bytes(tensor([-1, -4])),
    "a shape of texts": of_bytes(tensor(["1"])),
    "a shape of truths": of_bytes(tensor([True])),
    "a shape that is none": of_bytes(tensor(None)),
    "a shape in a shape": of_bytes(tensor([[1]])),
    "a shape that overflows": of_bytes(tensor([1 << 62] * 8)),
    "offsets below none": of_bytes(tensor([1], (-4, 0))),
    "offsets that turn": of_bytes(tensor([1], (4, 0))),
    "offsets of one": of_bytes(tensor([1], (4,))),
    "offsets of texts": of_bytes(tensor([1], ("0", "4"))),
    "a dtype that is a list": of_bytes(tensor([1], dtype=["F32"])),
    "an unknown dtype": of_bytes(tensor([1], dtype="\x1b[2JF32\nok: fine")),
    "a name with escape sequences": of_bytes(tensor([3], name="\x1b[2Jw\nok: fine")),
    "a header of 60 MB": lambda path: path.write_bytes(
        safetensors(b'{"__metadata__": {"a": "' + b"x" * 60_000_000 + b'"}}')
    ),
    "a header of 30 MB of lists": lambda path: path.write_bytes(
        safetensors(b'{"a": [' + b"[]," * 10_000_000 + b"[]]}")
    ),
    "a header of a million tensors": lambda path: path.write_bytes(
        safetensors(
            b"{"
            + b",".join(
                b'"%d":{"dtype":"F32","shape":[],"data_offsets":[0,4]}' % n for n in range(400_000)
            )
            + b"}",
            b"\0" * 4,
        )
    ),
    "a deep header": of_bytes(safetensors(b'{"a":' * DEEP)),
    "a header that is a list": of_bytes(safetensors(b"[]")),
    "a header that is a text": of_bytes(safetensors(b'"x"')),
    "a row that is a text": of_bytes(safetensors(b'{"w": "x"}')),
    "a row that is empty": of_bytes(safetensors(b'{"w": {}}')),
    "a header of bytes": of_bytes(safetensors(bytes(range(256)))),
    "a length beyond the file": of_bytes(struct.pack("<Q", 1 << 40) + b"{}"),
    "the greatest length": of_bytes(b"\xff" * 8 + b"{}"),
    "a few bytes": of_bytes(b"\x01\x02"),
    "data behind the last tensor": of_bytes(tensor([1]) + b"x" * 10),
}


PRESET = yaml.safe_load((ROOT / "builder/data/presets/llama-tiny.yaml").read_text())


def deployment(**given: Any) -> str:
    # By the library in C: one holds 50,000 numbers.
    return yaml.dump({**PRESET, **given}, Dumper=yaml.CSafeDumper)


REQUESTS: Mapping[str, dict[str, Any]] = {
    "a name of 300 letters": {"name": "x" * 300},
    "a checkpoint of 300 letters": {"checkpoint": "x" * 300},
    "a checkpoint of 10,000 letters": {"checkpoint": "x" * 10_000},
    "a checkpoint with NUL": {"checkpoint": "a\0b"},
    "a checkpoint above": {"checkpoint": "../" * 2_000},
    "a checkpoint that is a home": {"checkpoint": "~nobody-of-this-name/x"},
    "a release of 300 letters": {"engine": {"release": "x" * 300}},
    "a release file of 300 letters": {"engine": {"release": "x" * 300 + ".json"}},
    "a release file that is a device": {"engine": {"release": "/dev/zero.json"}},
    "a GPU of 10,000 letters": {"hardware": {"gpu": "x" * 10_000, "num_gpus": 1}},
    "10^300 GPUs": {"hardware": {"gpu": "h100", "num_gpus": 10**300}},
    "a load of 10^30": {"workload": {"isl": 10**30, "osl": 1, "concurrency": 1}},
    "the largest load": {
        "workload": {"isl": 100_000_000, "osl": 100_000_000, "concurrency": 1_000_000}
    },
    "an infinite objective": {"slo": {"ttft_ms": float("inf")}},
    "an objective that is no number": {"slo": {"ttft_ms": float("nan")}},
    "a batch of 10^300": {"engine_config": {"max_batch_size": 10**300}},
    "a batch that is infinite": {"engine_config": {"max_batch_size": float("inf")}},
    "a batch that is a list": {"engine_config": {"max_batch_size": [1]}},
    "a list of 50,000 sizes": {
        "engine_config": {"cuda_graph_config": {"batch_sizes": list(range(1, 50_001))}}
    },
    "options that are a list": {"engine_config": [1]},
    "keys that are numbers": {"engine_config": {1: 2, None: 3, False: 4}},
    "targets that are numbers": {"targets": [1, 2]},
    "a target that is a text": {"targets": {"triton": "x"}},
    "a target of 10,000 letters": {"targets": ["x" * 10_000]},
    "an image of 10,000 letters": {"images": {"triton": "x" * 10_000}},
    "an image that hangs a pattern": {"images": {"triton": "a/" + "a-" * 240 + "!"}},
    "code before the server": {"environment": {"LD_PRELOAD": "/tmp/x.so"}},
    "code before the loader": {"environment": {"LD_AUDIT": "/tmp/x.so"}},
    "other libraries": {"environment": {"LD_LIBRARY_PATH": "/tmp"}},
    "code before the shell": {"environment": {"BASH_ENV": "/tmp/x"}},
    "code before another shell": {"environment": {"ENV": "/tmp/x"}},
    "other programs": {"environment": {"PATH": "/tmp"}},
    "other modules": {"environment": {"PYTHONPATH": "/tmp"}},
    "code before Python": {"environment": {"PYTHONSTARTUP": "/tmp/x"}},
    "another Python": {"environment": {"PYTHONHOME": "/tmp"}},
    "options of the shell": {"environment": {"SHELLOPTS": "xtrace"}},
    "a prompt that runs": {"environment": {"PS4": "$(id)"}},
    "another compiler": {"environment": {"CC": "/tmp/x"}},
    "code before CUDA": {"environment": {"CUDA_INJECTION64_PATH": "/tmp/x.so"}},
    "another program that starts ranks": {"environment": {"OMPI_MCA_plm_rsh_agent": "x"}},
    "other compiled Python": {"environment": {"PYTHONPYCACHEPREFIX": "/tmp"}},
    "other separators": {"environment": {"IFS": "/"}},
    "tunables of the C library": {"environment": {"GLIBC_TUNABLES": "x"}},
    "a variable with NUL": {"environment": {"X": "a\0b"}},
    "a key's file above": {"targets": {"triton": {"key_file": "/run/../etc/shadow"}}},
    "a key's file that ends above": {"targets": {"triton": {"key_file": "/run/.."}}},
    "a certificate above": {
        "targets": {
            "triton": {
                "key_file": "/k",
                "grpc_tls": {"certificate": "/a/../b", "key": "/k", "client_ca": "/c"},
            }
        }
    },
    "a site that is a device": {"targets": {"slurm": {"site": "/dev/zero"}}},
    "a site of 300 letters": {"targets": {"slurm": {"site": "x" * 300}}},
    "prefill servers in themselves": {"targets": {"slurm": {"prefill": {"deployment": "d.yaml"}}}},
    "a draft of no tokens": {"draft": {"checkpoint": "x" * 300, "tokens": 0}},
}
SETTINGS: Mapping[str, str] = {
    "3,000 levels": "engine_config." + "a." * 3_000 + "b=1",
    "3,000 levels of a value": "engine_config=" + "{a: " * 3_000 + "1" + "}" * 3_000,
    "a deep value": "engine_config=" + "[" * 10_000,
    "a key twice": "engine_config={max_batch_size: 1, max_batch_size: 2}",
    "a key twice inside": "engine_config={kv_cache_config: {dtype: auto, dtype: fp8}}",
    "an alias": "engine_config=&a [*a]",
    "a Python object": "engine_config=!!python/object/apply:os.system [id]",
    "two documents": "name=a\n--- b",
    "a path of dots": "....=1",
    "a path of 10,000 letters": "x" * 10_000 + "=1",
    "an escape sequence": "\x1b[2Jname=1",
    "a line": "name\nok: fine=1",
    "a number of 5,000 digits": "workload.isl=" + "9" * 5_000,
    "a name of 300 letters": "checkpoint=" + "x" * 300,
    "a list's item": "targets.0=1",
    "bytes that are no text": "name=\udce9",
    "nothing": "",
}


def checkpoint(folder: Path, config: bytes | None = None, weights: Make | None = None) -> Path:
    """A checkpoint folder in which one thing is hostile."""
    made = folder / "checkpoint"
    made.mkdir()
    (made / "config.json").write_bytes(config or json.dumps(LLAMA).encode())
    (made / "tokenizer.json").write_text("{}")
    (weights or of_bytes(tensor([1])))(made / "model.safetensors")
    return made


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, weights=WEIGHTS[name])
    survive("inspect", "checkpoint", cwd=tmp_path, most_mb=350)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(("config.json", name) for name in {**NO_FILES, **JSON, **LARGE_JSON}),
        *(("hf_quant_config.json", name) for name in {**NO_FILES, **JSON}),
        *(("generation_config.json", name) for name in {**NO_FILES, **JSON}),
    ],
)
def test_files_of_a_checkpoint(file: str, name: str, tmp_path: Path) -> None:
    made = checkpoint(tmp_path)
    (made / file).unlink(missing_ok=True)
    {**NO_FILES, **JSON, **LARGE_JSON}[name](made / file)
    survive("inspect", "checkpoint", cwd=tmp_path, most_mb=350)


@pytest.mark.parametrize("files", [("model.safetensors.index.json",), ("SHA256SUMS", "README.md")])
@pytest.mark.parametrize("name", NO_FILES)
def test_other_files_of_a_checkpoint(files: tuple[str, ...], name: str, tmp_path: Path) -> None:
    made = checkpoint(tmp_path)
    for file in files:
        NO_FILES[name](made / file)
    survive("inspect", "checkpoint", cwd=tmp_path, most_mb=350)


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, json.dumps(FIELDS[name]).encode())
    survive("inspect", "checkpoint", cwd=tmp_path, most_mb=350)
    survive("plan", "llama-tiny", "--set", "checkpoint=./checkpoint", cwd=tmp_path)


@pytest.mark.parametrize("name", [*NO_FILES, *YAML, *LARGE_YAML])
def test_deployment_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    {**NO_FILES, **YAML, **LARGE_YAML}[name](path)
    survive("plan", "d.yaml", cwd=tmp_path, most_mb=350)


@pytest.mark.parametrize("name", [*NO_FILES, *YAML])
def test_site_profiles(name: str, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    {**NO_FILES, **YAML}[name](path)
    setting = f"targets.slurm.site={path}"
    survive("plan", "llama-tiny", "--set", setting, cwd=tmp_path, most_mb=350)


CHECKED = {**NO_FILES, **JSON, **LARGE_JSON, **YAML, **LARGE_YAML}


@pytest.mark.parametrize("name", CHECKED)
def test_checked_files(name: str, tmp_path: Path) -> None:
    """Whatever a file claims to be: the same bytes with each suffix."""
    files = [f"x{suffix}" for suffix in (".yaml", ".json", ".pbtxt", ".sh", ".sbatch")]
    for file in files:
        CHECKED[name](tmp_path / file)
    done = survive("check", *files, cwd=tmp_path, codes=(0, 2), lines=False, most_s=10)
    assert name in NO_FILES or {*files} <= {*re.findall(r"x\.\w+", done.stdout)}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests(name: str, tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(deployment(**REQUESTS[name]))
    survive("render", "d.yaml", "-o", "bundle", cwd=tmp_path)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str, tmp_path: Path) -> None:
    survive("plan", "llama-tiny", "--set", SETTINGS[name], cwd=tmp_path)


@pytest.mark.parametrize("verb", ["plan", "inspect", "verify", "explain", "diff"])
@pytest.mark.parametrize(
    "name", ["x" * 300, "x" * 5_000, "x/" * 3_000, "\x1b[2J", "a\nok: fine", "/dev/null", "", "~x"]
)
def test_references(verb: str, name: str, tmp_path: Path) -> None:
    more = [name] if verb == "diff" else []
    survive(verb, name, *more, cwd=tmp_path, lines=False)
    survive("check", name, cwd=tmp_path, codes=(0, 2), lines=False)


@pytest.mark.parametrize("name", [*NO_FILES, *JSON])
def test_imported_releases(name: str, tmp_path: Path) -> None:
    for file in ("table.json", "llm_args_golden_manifest.json"):
        path = tmp_path / file
        {**NO_FILES, **JSON}[name](path)
    survive("plan", "llama-tiny", "--set", "engine.release=table.json", cwd=tmp_path)
    given = (
        "--manifest",
        "llm_args_golden_manifest.json",
        "--name",
        "x",
        "--like",
        "1.2.1",
        "-o",
        "new.json",
    )
    survive("release", "import", *given, cwd=tmp_path)


@pytest.mark.parametrize("name", [*NO_FILES, *JSON])
def test_results_of_runs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    {**NO_FILES, **JSON}[name](path)
    survive("report", "bench.json", "-o", "page.html", cwd=tmp_path, module="launch")
    survive("bench", "diff", "bench.json", "bench.json", cwd=tmp_path, module="launch")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", [*NO_FILES, *YAML])
def test_advisories_of_others(name: str, tmp_path: Path) -> None:
    for file in ("triton.yaml", "tensorrt_llm.yaml"):
        path = tmp_path / file
        {**NO_FILES, **YAML}[name](path)
    survive("advisories", "--advisories", tmp_path, cwd=tmp_path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline.render("llama-tiny", tmp_path_factory.mktemp("sound") / "bundle").folder


DECISIONS: Mapping[str, Any] = {
    "of another kind": [1, 2],
    "without path": [{"value": 1}],
    "with a path that is a list": [
        {"path": [], "value": 1, "reason": "", "evidence": "", "source": ""}
    ],
    "without reason": [{"path": "x", "value": 1}],
    "that forge a line": [
        {
            "path": "x\nok: fine",
            "value": "\x1b[2J",
            "reason": "\x1b[2J",
            "evidence": "",
            "source": "",
        }
    ],
}


def test_what_is_printed_cannot_act_on_a_terminal(sound: Path, tmp_path: Path) -> None:
    """Where the content is as it must be, and only its letters are hostile."""
    hostile = "\x1b[2J\x9b31m\u202e\nok: fine"
    folder = shutil.copytree(sound, tmp_path / f"b{hostile}")
    manifest = json.loads((folder / "manifest.json").read_text())
    for row in manifest["decisions"]:
        row |= {"path": hostile, "value": hostile, "reason": hostile, "source": hostile}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "SHA256SUMS").unlink()
    for arguments in (("explain", folder), ("explain", folder, "--json"), ("diff", sound, folder)):
        done = survive(*arguments, cwd=tmp_path, codes=(0,))
        assert "\nok: fine" not in done.stdout
    survive("check", folder, cwd=tmp_path, codes=(0, 2), lines=False)


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_of_a_manifest(name: str, sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "bundle")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["decisions"] = DECISIONS[name]
    manifest["inputs"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for arguments in (("explain", "bundle"), ("diff", "bundle", sound), ("diff", sound, "bundle")):
        survive(*arguments, cwd=tmp_path)


QUESTION: dict[str, Any] = {
    "model": "openai/gpt-oss-120b",
    "gpu": "b200",
    "precision": "fp4",
    "engine": "tensorrt_llm",
    "tp": 4,
    "ep": 1,
    "attention_dp": 1,
    "isl": 1024,
    "osl": 1024,
    "concurrency": 16,
}


def question(**given: Any) -> bytes:
    return json.dumps(QUESTION | given).encode()


# In the place of a line of a batch.
QUESTIONS: Mapping[str, bytes] = {
    "nothing but lines": b"\n\n\n",
    "two on a line": question() + question(),
    "a key twice": question()[:-1] + b', "tp": 8}',
    "an unknown key": question(conc=3),
    "a key with lines": question(**{"a\nok: fine": 1}),
    "a size below none": question(tp=-1),
    "a size that is half": question(isl=1.5),
    "a size that is true": question(tp=True),
    "a size that is a text": question(osl="1k"),
    "a size that is NaN": question().replace(b"16", b"NaN"),
    "a size that is infinite": question().replace(b"16", b"1e999"),
    "a size of 10^30": question(concurrency=10**30),
    "a size of 5,000 digits": question().replace(b"16", b"9" * 5_000),
    "a group that is a mapping": question(attention_dp={}),
    "experts that are a list": question(ep=[]),
    "a GPU that is a list": question(gpu=[]),
    "a release that is a number": question(release=1.2),
    "drafts below none": question(mtp=-1),
    "drafts without end": question(mtp=10**9),
    "an acceptance without drafts": question(acceptance=2),
    "an acceptance that is NaN": question(mtp=3, acceptance=float("nan")),
    "an acceptance above its drafts": question(mtp=1, acceptance=5),
    "bytes that are no UTF-8": b'{"model": "\xe9"}',
    "a model of nothing": question(model=" "),
}
# Names that no row has: what is asked there was never measured.
UNKNOWN: Mapping[str, bytes] = {
    "an unknown GPU": question(gpu="b2000"),
    "a GPU with escape sequences": question(gpu="\x1b[2Jb200"),
    "a GPU that is no letter": question(gpu="\ud800"),
    "an unknown precision": question(precision="fp5"),
    "an unknown engine": question(engine="llama.cpp"),
}


@pytest.mark.parametrize("name", [*NO_FILES, *JSON, *QUESTIONS])
def test_questions_of_a_batch(name: str, tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    made = {**NO_FILES, **JSON, **{key: of_bytes(data) for key, data in QUESTIONS.items()}}
    made[name](path)
    survive("estimate", "--batch", "batch.jsonl", cwd=tmp_path, most_mb=350)


@pytest.mark.parametrize("name", UNKNOWN)
def test_questions_about_what_nobody_knows(name: str, tmp_path: Path) -> None:
    (tmp_path / "batch.jsonl").write_bytes(UNKNOWN[name])
    done = survive("estimate", "--batch", "batch.jsonl", cwd=tmp_path, codes=(3,))
    assert json.loads(done.stdout)["kind"] == "unmeasured"


@pytest.mark.parametrize(
    "name",
    ["a\u2028ok: fine", "\ud800", "\x1b[2J", "a\0b", "/dev/zero", "../" * 2_000, "x" * 10_000],
)
def test_models_that_nobody_measured(name: str, tmp_path: Path) -> None:
    (tmp_path / "batch.jsonl").write_bytes(question(model=name) + b"\n" + question())
    done = survive("estimate", "--batch", "batch.jsonl", cwd=tmp_path, codes=(0,))
    refused, answered = map(json.loads, done.stdout.splitlines())
    assert refused["kind"] == "unmeasured"
    assert answered["rows"]


RUN: dict[str, Any] = {
    "kind": "bench",
    "subject": {
        "model": "openai/gpt-oss-120b",
        "gpu": "h200",
        "num_gpus": 1,
        "precision": "fp4",
        "engine": {"name": "tensorrt_llm", "used": "tensorrt_llm", "release": "1.2.1"},
        "options": {},
    },
    "workload": {"isl": 1000, "osl": 1000},
    "points": [
        {
            "load": {"kind": "concurrency", "concurrency": 64},
            "requests": {"failed": 0},
            "tpot_ms": {"p50": 20.0},
            "ttft_ms": {"p50": 200.0},
        }
    ],
}
# Places of a run, and what is in the place of a value there.
PLACES = (
    *("points", "points.0", "points.0.load", "points.0.load.concurrency", "points.0.requests"),
    *("points.0.tpot_ms", "points.0.tpot_ms.p50", "points.0.ttft_ms.p50", "subject"),
    *("subject.engine", "subject.engine.release", "subject.model", "subject.num_gpus"),
    *("subject.precision", "subject.options", "workload", "workload.isl"),
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"tensor_parallel_size": 0},
    {"moe_expert_parallel_size": []},
    {"mtp_draft_tokens": -1},
)


def with_value(place: str, value: Any) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(json.dumps(RUN))
    *parents, last = place.split(".")
    inner = run
    for key in parents:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    inner[int(last) if isinstance(inner, list) else last] = value
    return run


def refuse(run: Any, folder: Path) -> None:
    """Reading the run says where it is wrong."""
    (folder / "bench.json").write_text(json.dumps(run))
    with pytest.raises(BadInput) as error:
        own_runs.read(folder)
    assert all("bench.json" in str(row) and row.fix for row in error.value.diagnostics)


@pytest.mark.parametrize("value", [-1, [7], True, "x\x1b[2J", float("nan"), 10**400], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_values_of_own_runs(place: str, value: Any, tmp_path: Path) -> None:
    refuse(with_value(place, value), tmp_path)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_own_runs(options: dict[str, Any], tmp_path: Path) -> None:
    refuse(with_value("subject.options", options), tmp_path)


@pytest.mark.parametrize("name", [*NO_FILES, *JSON])
def test_files_of_own_runs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    {**NO_FILES, **JSON}[name](path)
    survive("estimate", "gpt-oss-120b-h200", "--rows", ".", cwd=tmp_path, most_mb=450)


CHOICES: Mapping[str, dict[str, Any]] = {
    "GPUs in the wrong order": {"num_gpus": {"at_most": 2, "at_least": 4}},
    "half a GPU": {"num_gpus": 1.5},
    "no GPU": {"gpu": []},
    "a GPU that is a number": {"gpu": [7]},
    "a GPU without end": {"num_gpus": {"at_most": 10**30}},
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str, tmp_path: Path) -> None:
    hardware = {"gpu": "h100", "num_gpus": {"at_most": 1}} | CHOICES[name]
    (tmp_path / "d.yaml").write_text(deployment(hardware=hardware))
    done = survive("choose", "d.yaml", cwd=tmp_path)
    assert "hardware" in done.stderr


@pytest.mark.parametrize("option", ["-o", "--html"])
def test_a_choice_is_not_written_to_no_name(option: str, tmp_path: Path) -> None:
    request = deployment(
        checkpoint="openai/gpt-oss-120b",
        hardware={"gpu": "h200", "num_gpus": 1},
        workload={"isl": 1000, "osl": 1000, "concurrency": 64},
        engine={"release": "1.2.1"},
    )
    (tmp_path / "d.yaml").write_text(request)
    survive("choose", "d.yaml", option, "", cwd=tmp_path)
