"""The messages of Triton's gRPC protocol that a load needs, as far as it needs them.

tritonclient has all of them, in a package whose import takes longer than a load takes to begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = ["DecodeError", "message"]

PACKAGE = "inference"
# Fields of each message by their numbers: a name and a type, which is another message's or a
# scalar's; `*` marks what is repeated. Fields that are not here are passed over.
MESSAGES: Mapping[str, Mapping[int, str]] = {
    "InferParameter": {1: "bool_param bool"},
    "Parameter": {1: "key string", 2: "value InferParameter"},
    "Tensor": {1: "name string", 2: "datatype string", 3: "shape int64*"},
    "ModelMetadataRequest": {1: "name string"},
    "ModelMetadataResponse": {1: "name string", 2: "versions string*", 4: "inputs Tensor*"},
    "ModelInferRequest": {
        1: "model_name string",
        3: "id string",
        4: "parameters Parameter*",
        5: "inputs Tensor*",
        7: "raw_input_contents bytes*",
    },
    "ModelInferResponse": {
        1: "model_name string",
        2: "model_version string",
        4: "parameters Parameter*",
        5: "outputs Tensor*",
        6: "raw_output_contents bytes*",
    },
    "ModelStreamInferResponse": {1: "error_message string", 2: "infer_response ModelInferResponse"},
}
FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "bool": FIELD.TYPE_BOOL,
    "bytes": FIELD.TYPE_BYTES,
    "int64": FIELD.TYPE_INT64,
    "string": FIELD.TYPE_STRING,
}


def message(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="load.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for number, words in fields.items():
            field, kind = words.rstrip("*").split()
            label = FIELD.LABEL_REPEATED if words.endswith("*") else FIELD.LABEL_OPTIONAL
            one = described.field.add(name=field, number=number, label=label)
            if kind in SCALARS:
                one.type = SCALARS[kind]
            else:
                one.type, one.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()
