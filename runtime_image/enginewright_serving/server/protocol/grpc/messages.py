"""The messages of `inference.GRPCInferenceService` and `grpc.health.v1.Health`, as protobuf classes.

Their descriptors are in a separate pool, since a process that also imports a client's generated module would register
the same names twice. On the wire a message has no name and a map is a repeated entry, so names that only this file
uses are shorter than the specification's.
"""

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE: Final = "enginewright.oip"
_Field = tuple[int, "int | str", bool]  # number, type or name of a message, whether repeated

_BOOL: Final = FieldDescriptorProto.TYPE_BOOL
_BYTES: Final = FieldDescriptorProto.TYPE_BYTES
_DOUBLE: Final = FieldDescriptorProto.TYPE_DOUBLE
_FLOAT: Final = FieldDescriptorProto.TYPE_FLOAT
_INT32: Final = FieldDescriptorProto.TYPE_INT32
_INT64: Final = FieldDescriptorProto.TYPE_INT64
_STRING: Final = FieldDescriptorProto.TYPE_STRING
_UINT32: Final = FieldDescriptorProto.TYPE_UINT32
_UINT64: Final = FieldDescriptorProto.TYPE_UINT64

RAW_INPUT_CONTENTS: Final = 7  # of ModelInferRequest
RAW_OUTPUT_CONTENTS: Final = 6  # of ModelInferResponse
REQUEST_ID: Final = 3  # of ModelInferRequest
REQUEST_INPUTS: Final = 5  # likewise
RESPONSE_ID: Final = 3  # of ModelInferResponse
INPUT_CONTENTS: Final = 5  # of an input
PARAMETER_CHOICES: Final = "choice"  # of a parameter: the one value that it has


def _one(number: int, kind: "int | str") -> _Field:
    return number, kind, False


def _many(number: int, kind: "int | str") -> _Field:
    return number, kind, True


_MESSAGES: Final[dict[str, dict[str, _Field]]] = {
    "Empty": {},
    "Live": {"live": _one(1, _BOOL)},
    "Ready": {"ready": _one(1, _BOOL)},
    "Model": {"name": _one(1, _STRING), "version": _one(2, _STRING)},
    "ServerMetadata": {
        "name": _one(1, _STRING),
        "version": _one(2, _STRING),
        "extensions": _many(3, _STRING),
    },
    "TensorMetadata": {
        "name": _one(1, _STRING),
        "datatype": _one(2, _STRING),
        "shape": _many(3, _INT64),
    },
    "ModelMetadata": {
        "name": _one(1, _STRING),
        "versions": _many(2, _STRING),
        "platform": _one(3, _STRING),
        "inputs": _many(4, "TensorMetadata"),
        "outputs": _many(5, "TensorMetadata"),
    },
    "Value": {
        "bool_param": _one(1, _BOOL),
        "int64_param": _one(2, _INT64),
        "string_param": _one(3, _STRING),
        "double_param": _one(4, _DOUBLE),
        "uint64_param": _one(5, _UINT64),
    },
    "Parameter": {"key": _one(1, _STRING), "value": _one(2, "Value")},
    "Contents": {
        "bool_contents": _many(1, _BOOL),
        "int_contents": _many(2, _INT32),
        "int64_contents": _many(3, _INT64),
        "uint_contents": _many(4, _UINT32),
        "uint64_contents": _many(5, _UINT64),
        "fp32_contents": _many(6, _FLOAT),
        "fp64_contents": _many(7, _DOUBLE),
        "bytes_contents": _many(8, _BYTES),
    },
    "Input": {
        "name": _one(1, _STRING),
        "datatype": _one(2, _STRING),
        "shape": _many(3, _INT64),
        "parameters": _many(4, "Parameter"),
        "contents": _one(INPUT_CONTENTS, "Contents"),
    },
    "RequestedOutput": {"name": _one(1, _STRING), "parameters": _many(2, "Parameter")},
    "InferRequest": {
        "model_name": _one(1, _STRING),
        "model_version": _one(2, _STRING),
        "id": _one(REQUEST_ID, _STRING),
        "parameters": _many(4, "Parameter"),
        "inputs": _many(REQUEST_INPUTS, "Input"),
        "outputs": _many(6, "RequestedOutput"),
        "raw_input_contents": _many(RAW_INPUT_CONTENTS, _BYTES),
    },
    "Output": {
        "name": _one(1, _STRING),
        "datatype": _one(2, _STRING),
        "shape": _many(3, _INT64),
        "parameters": _many(4, "Parameter"),
        "contents": _one(5, "Contents"),
    },
    "InferResponse": {
        "model_name": _one(1, _STRING),
        "model_version": _one(2, _STRING),
        "id": _one(RESPONSE_ID, _STRING),
        "parameters": _many(4, "Parameter"),
        "outputs": _many(5, "Output"),
        "raw_output_contents": _many(RAW_OUTPUT_CONTENTS, _BYTES),
    },
    "Statistics": {"model_stats": _many(1, "ModelStatistics")},
    "ModelStatistics": {
        "name": _one(1, _STRING),
        "version": _one(2, _STRING),
        "last_inference": _one(3, _UINT64),
        "inference_count": _one(4, _UINT64),
        "execution_count": _one(5, _UINT64),
        "inference_stats": _one(6, "InferStatistics"),
        "batch_stats": _many(7, "BatchStatistics"),
    },
    "Duration": {"count": _one(1, _UINT64), "ns": _one(2, _UINT64)},
    "InferStatistics": {
        "success": _one(1, "Duration"),
        "fail": _one(2, "Duration"),
        "queue": _one(3, "Duration"),
        "compute_input": _one(4, "Duration"),
        "compute_infer": _one(5, "Duration"),
        "compute_output": _one(6, "Duration"),
        "cache_hit": _one(7, "Duration"),
        "cache_miss": _one(8, "Duration"),
    },
    "BatchStatistics": {
        "batch_size": _one(1, _UINT64),
        "compute_input": _one(2, "Duration"),
        "compute_infer": _one(3, "Duration"),
        "compute_output": _one(4, "Duration"),
    },
    "ConfigurationRequest": {"name": _one(1, _STRING), "version": _one(2, _STRING)},
    "Configuration": {"config": _one(1, "ModelConfiguration")},
    "ModelConfiguration": {
        "name": _one(1, _STRING),
        "platform": _one(2, _STRING),
        "max_batch_size": _one(4, _INT32),
        "input": _many(5, "ConfiguredInput"),
        "output": _many(6, "ConfiguredOutput"),
        "dynamic_batching": _one(11, "Empty"),
        "backend": _one(17, _STRING),
    },
    # an enum has the encoding of its number
    "ConfiguredInput": {
        "name": _one(1, _STRING),
        "data_type": _one(2, _INT32),
        "dims": _many(4, _INT64),
    },
    "ConfiguredOutput": {
        "name": _one(1, _STRING),
        "data_type": _one(2, _INT32),
        "dims": _many(3, _INT64),
    },
    "IndexRequest": {"ready": _one(2, _BOOL)},
    "Index": {"models": _many(1, "IndexedModel")},
    "IndexedModel": {
        "name": _one(1, _STRING),
        "version": _one(2, _STRING),
        "state": _one(3, _STRING),
        "reason": _one(4, _STRING),
    },
    "RepositoryRequest": {"model_name": _one(2, _STRING)},
    "TraceSettingsRequest": {"settings": _many(1, "TraceSetting"), "model_name": _one(2, _STRING)},
    "TraceSettings": {"settings": _many(1, "TraceSetting")},
    "TraceSetting": {"key": _one(1, _STRING), "value": _one(2, "TraceValue")},
    "TraceValue": {"value": _many(1, _STRING)},
    "LogSettings": {"settings": _many(1, "LogSetting")},  # request and response
    "LogSetting": {"key": _one(1, _STRING), "value": _one(2, "LogValue")},
    "LogValue": {
        "bool_param": _one(1, _BOOL),
        "uint32_param": _one(2, _UINT32),
        "string_param": _one(3, _STRING),
    },
    "RegionRequest": {"name": _one(1, _STRING)},
    "HealthRequest": {"service": _one(1, _STRING)},
    "HealthResponse": {"status": _one(1, _INT32)},  # an enum has the same encoding
}

_CHOSEN: Final = {"Value", "LogValue"}  # messages that have one of their fields
# names of enum inference.DataType, in the order of their numbers
DATA_TYPES: Final = (
    *("TYPE_INVALID", "TYPE_BOOL"),
    *(f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)),
    *(f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)),
    *("TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
)


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="oip.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = (
                FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{kind}"
            else:
                added.type = kind
            if name in _CHOSEN:
                added.oneof_index = 0
        if name in _CHOSEN:
            message.oneof_decl.add(name=PARAMETER_CHOICES)
    return file


_POOL: Final = DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())


def _message(name: str) -> Any:  # noqa: ANN401 - made at run time
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Empty: Final = _message("Empty")
Live: Final = _message("Live")
Ready: Final = _message("Ready")
Model: Final = _message("Model")
ServerMetadata: Final = _message("ServerMetadata")
ModelMetadata: Final = _message("ModelMetadata")
Contents: Final = _message("Contents")
InferRequest: Final = _message("InferRequest")
InferResponse: Final = _message("InferResponse")
Statistics: Final = _message("Statistics")
ModelStatistics: Final = _message("ModelStatistics")
ConfigurationRequest: Final = _message("ConfigurationRequest")
Configuration: Final = _message("Configuration")
IndexRequest: Final = _message("IndexRequest")
Index: Final = _message("Index")
RepositoryRequest: Final = _message("RepositoryRequest")
TraceSettingsRequest: Final = _message("TraceSettingsRequest")
TraceSettings: Final = _message("TraceSettings")
LogSettings: Final = _message("LogSettings")
RegionRequest: Final = _message("RegionRequest")
HealthRequest: Final = _message("HealthRequest")
HealthResponse: Final = _message("HealthResponse")
