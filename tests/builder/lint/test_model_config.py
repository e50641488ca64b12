"""Triton's `config.pbtxt`: read as protobuf reads it, and judged as the engine's model needs it."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2

from builder.diagnostics import Diagnostic
from builder.lint.rules import triton, triton_fields
from tests.conftest import ROOT
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

SHIPPED = ROOT / "model_repository" / "tensorrt_llm" / "config.pbtxt"
NOWHERE = Path("/nowhere/config.pbtxt")

# What makes protobuf refuse a text; the other rules are Triton's and the engine's.
STRUCTURE = {
    "syntax",
    "unknown-key",
    "unknown-value",
    "value-type",
    "duplicate-key",
    "exclusive-keys",
}

MANY = TABLES["MANY"]


def faults(text: str, path: Path = NOWHERE) -> list[Diagnostic]:
    return list(triton.config_diagnostics(text, path))


def refused(text: str) -> bool:
    """Whether protobuf itself refuses a text."""
    try:
        text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError:
        return True
    return False


def found(text: str) -> bool:
    return any(fault.rule in STRUCTURE for fault in faults(text))


TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|#[^\n]*|[\w.+-]+|\S")
WORDS = ("{", "}", "[", "]", ":", ",", "7", "-1", "1.5", '"x"', "true", "TYPE_FP32", "name", "dim")


def variants(text: str) -> Iterator[str]:
    """The text with each of its tokens gone, doubled, misspelt or replaced by another word."""
    choice = random.Random(1)
    for match in TOKEN.finditer(text):
        token = match.group()
        if not token.startswith("#"):
            for other in ("", f"{token} {token}", f"{token}x", choice.choice(WORDS)):
                yield text[: match.start()] + other + text[match.end() :]


@pytest.mark.parametrize("text", [SHIPPED.read_text(), MANY, ""], ids=["shipped", "many", "empty"])
def test_what_protobuf_reads_has_no_fault_of_structure(text: str) -> None:
    assert not refused(text)
    assert not found(text)


@pytest.mark.parametrize(
    ("text", "every"), [(SHIPPED.read_text(), 25), (MANY, 2)], ids=["shipped", "many"]
)
def test_what_protobuf_refuses_is_found_and_nothing_else(text: str, every: int) -> None:
    """Both judge each variant alike; protobuf is the judge of what is right.

    The shipped file says the same of many tensors: a part of its variants is enough.
    """
    cases = list(variants(text))[::every]
    assert len(cases) > 200
    differing = [case for case in cases if refused(case) != found(case)]
    assert not differing, differing[0]


def test_the_schema_is_that_of_the_protobuf_definitions() -> None:
    names = {
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_BYTES: "string",
        FieldDescriptor.TYPE_DOUBLE: "float",
        FieldDescriptor.TYPE_FLOAT: "float",
        FieldDescriptor.TYPE_INT32: "int32",
        FieldDescriptor.TYPE_INT64: "int64",
        FieldDescriptor.TYPE_STRING: "string",
        FieldDescriptor.TYPE_UINT32: "uint32",
        FieldDescriptor.TYPE_UINT64: "uint64",
    }
    schema = triton.schema()

    def compare(descriptor: Descriptor) -> None:
        kind = descriptor.full_name.removeprefix("inference.")
        assert list(schema["messages"][kind]) == [field.name for field in descriptor.fields], kind
        for field in descriptor.fields:
            inner = field.message_type or field.enum_type
            name = inner.full_name.removeprefix("inference.") if inner else names[field.type]
            assert schema["messages"][kind][field.name].split()[-1] == name, field.full_name
            if field.enum_type:
                assert schema["enums"][name] == list(field.enum_type.values_by_name)
            elif field.message_type:
                compare(field.message_type)

    compare(model_config_pb2.ModelConfig.DESCRIPTOR)


def test_the_shipped_model_has_no_fault() -> None:
    assert faults(SHIPPED.read_text(), SHIPPED) == []


def test_the_shipped_models_tensors_are_the_known_ones() -> None:
    """The table of tensor types is that of the model that ships, which goes on from there."""
    config = text_format.Parse(SHIPPED.read_text(), model_config_pb2.ModelConfig())
    types = model_config_pb2.DataType
    for group in ("input", "output"):
        shipped = {row.name: types.Name(row.data_type) for row in getattr(config, group)}
        assert triton.llmapi()[f"{group}s"].items() <= shipped.items()


# Case: what is changed in the shipped file, and the one fault that follows.
CASES = TABLES["CASES"]


@pytest.mark.parametrize("case", CASES)
def test_each_fault_has_its_place_and_its_remedy(case: str) -> None:
    old, new, (line, column, path, rule, remedy) = CASES[case]
    text = SHIPPED.read_text()
    assert old in text
    mistakes = faults(text.replace(old, new, 1))
    assert [(f.location, f.path, f.rule) for f in mistakes] == [((line, column), path, rule)]
    assert mistakes[0].fix.startswith(remedy)


@pytest.mark.parametrize("text", ["@", '"', "] x: 1"])
def test_a_text_that_is_wrong_from_its_first_character_is_an_error_of_syntax(text: str) -> None:
    assert [(f.location, f.rule) for f in faults(text)] == [((1, 1), "syntax")]


def test_the_model_needs_its_prompt_and_its_answer() -> None:
    text = (
        'backend: "python" input [{ name: "text_input" data_type: TYPE_STRING dims: -1 },\n'
        '{ name: "sampling_param_seed" data_type: TYPE_UINT64 dims: 1 optional: true }]'
    )
    assert {(f.path, f.rule) for f in faults(text)} == {
        ("instance_group", "triton-instance-group"),
        ("output", "missing-key"),
    }


def test_another_model_in_python_is_none_of_the_engines() -> None:
    text = (
        'backend: "python" max_batch_size: 8 model_transaction_policy { decoupled: true }\n'
        'input [{ name: "text_input" data_type: TYPE_STRING dims: -1 },\n'
        '{ name: "stream" data_type: TYPE_BOOL dims: 1 }]\n'
    )
    assert faults(text) == []


def test_other_models_are_only_asked_for_what_triton_asks() -> None:
    text = 'platform: "onnxruntime_onnx" max_batch_size: 8 input { name: "x" dims: 1 }'
    assert [(f.path, f.message) for f in faults(text)] == [("input.0", "has no data_type")]


def test_the_name_must_be_that_of_the_folder_in_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "tensorrt_llm"
    (folder / "1").mkdir(parents=True)
    path = Path(shutil.copy(SHIPPED, folder))
    text = path.read_text()
    assert faults(f'name: "tensorrt_llm"\n{text}', path) == []
    (fault,) = faults(f'name: "other"\n{text}', path)
    assert (fault.location, fault.rule) == ((1, 1), "triton-model-name")
    assert faults(f'name: "other"\n{text}') == [], "a file outside a repository may have any name"


def test_the_data_files_name_their_source() -> None:
    for path in triton_fields.TRITON.glob("*.yaml"):
        assert yaml.safe_load(path.read_text())["source"]


def test_each_limit_of_triton_has_what_the_bundles_set_against_it() -> None:
    known = yaml.safe_load((triton_fields.TRITON / "programs.yaml").read_text())
    flags = {
        name for names in known["programs"]["tritonserver"]["flags"].values() for name in names
    }
    for row in yaml.safe_load((triton_fields.TRITON / "limits.yaml").read_text())["limits"]:
        assert row["against"]["text"] in (ROOT / row["against"]["file"]).read_text(), row["limit"]
        assert row["since"] in known["releases"], row["limit"]
        assert row.get("option", "--id")[2:] in flags, row["limit"]
