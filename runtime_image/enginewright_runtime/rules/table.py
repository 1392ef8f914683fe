"""Every rule: what it finds, its remedy and its source. docs/reference/rules.md shows this table.

An error stops the model, so it must be certain: what ONNX Runtime itself refuses to load, or what
cannot be served. Everything else is a warning. Findings are reported in this order.
"""

from functools import partial
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright_runtime.rules import (
    compiled,
    external,
    names,
    operators,
    structure,
    tensors,
    types,
    weights,
)
from enginewright_runtime.rules.base import Hit, Rule, Subject

_IR: Final = "docs/IR.md of onnx"
_OPERATORS: Final = "docs/Operators.md of onnx"
_EXTERNAL: Final = "docs/ExternalData.md of onnx"
_PROTO: Final = "onnx.proto"
_REFUSED: Final = "ONNX Runtime 1.31 refuses it"
_TENSORRT: Final = "docs/operators.md of onnx-tensorrt, for TensorRT 10"
_PROTOCOL: Final = "Open Inference Protocol v2, tensor data types"
_EXPORT_AGAIN: Final = "export the model again"
_RENAME: Final = "rename them before exporting, or in the graph with onnx.helper"

_warning: Final = partial(Rule, severity="warning")
_unsupported: Final = partial(_warning, reason=Reason.UNSUPPORTED_OPERATOR)
_external: Final = partial(Rule, reason=Reason.EXTERNAL_DATA_MISSING)

NOT_A_MODEL: Final = Rule(
    "not-a-model",
    "a file that is not an ONNX model, is truncated, or holds no graph",
    Reason.INVALID_MODEL.remedy,
    f"{_PROTO}, ModelProto; protobuf's encoding",
)
NESTED_TOO_DEEP: Final = Rule(
    "nested-too-deep",
    "subgraphs nested deeper than protobuf parsers accept",
    "export the model with fewer nested control-flow operators",
    "protobuf's limit of 100 nested messages, which is about 31 subgraphs; ONNX Runtime has it too",
)
FILE_TOO_LARGE: Final = Rule(
    "file-too-large",
    "an .onnx file of 2 GiB or more",
    Reason.MODEL_TOO_LARGE.remedy,
    f"protobuf's limit; {_EXTERNAL}",
    reason=Reason.MODEL_TOO_LARGE,
)
TOO_MANY_NODES: Final = Rule(
    "too-many-nodes",
    f"more than {structure.MAX_NODES} nodes, once the model's functions are inlined",
    "export loops as Loop or Scan instead of unrolling them",
    "measured: ONNX Runtime 1.31 loads 100,000 nodes in 7 s, and may take quadratic time",
    structure.check_inlined_size,
    reason=Reason.MODEL_TOO_LARGE,
)
NOT_TEXT: Final = Rule(
    "not-text",
    "names that are not UTF-8",
    _RENAME,
    f"{_PROTO}: protobuf strings are UTF-8; Python cannot read such names from ONNX Runtime",
)
OPSET_TOO_NEW: Final = Rule(
    "opset-beyond-runtime",
    "an opset that the runtime image does not load, where the model cannot be converted to an older one",
    Reason.OPSET_UNSUPPORTED.remedy,
    "docs/Versioning.md of onnxruntime; what the image's ONNX Runtime reports",
    reason=Reason.OPSET_UNSUPPORTED,
)
IR_TOO_NEW: Final = Rule(
    "ir-version-beyond-runtime",
    "an IR version that the runtime image does not load, with features that it introduced",
    Reason.IR_VERSION_UNSUPPORTED.remedy,
    "docs/Versioning.md of onnxruntime; what the image's ONNX Runtime reports",
    reason=Reason.IR_VERSION_UNSUPPORTED,
)
SHAPES_MISSING: Final = Rule(
    "shapes-missing",
    "dynamic dimensions, other than the first, whose sizes an engine needs and spec.shapes lacks",
    Reason.SHAPE_PROFILE_MISSING.remedy,
    "TensorRT's developer guide, Working with Dynamic Shapes; other backends need no sizes",
    reason=Reason.SHAPE_PROFILE_MISSING,
)
SHAPES_INVALID: Final = Rule(
    "shapes-contradict",
    "sizes in spec.shapes that contradict the model",
    Reason.SHAPE_PROFILE_INVALID.remedy,
    "the model's own declaration",
    reason=Reason.SHAPE_PROFILE_INVALID,
)
REFUSED_INVALID: Final = Rule(
    "runtime-refuses",
    "what ONNX Runtime refuses for a reason that no other rule covers",
    Reason.INVALID_MODEL.remedy,
    "ONNX Runtime, loading the model",
)
REFUSED_OPERATOR: Final = Rule(
    "operator-not-implemented",
    "operators that the backend lacks, or lacks for the element types in use",
    Reason.UNSUPPORTED_OPERATOR.remedy,
    "ONNX Runtime and the backend, loading the model; docs/OperatorKernels.md of onnxruntime",
    reason=Reason.UNSUPPORTED_OPERATOR,
)
NO_LOCALE: Final = Rule(
    "locale-missing",
    "strings normalized by a locale that is not installed where the model is loaded",
    "export with locale C (skl2onnx: options={TfidfVectorizer: {'locale': 'C'}}), or install the"
    " locale in a custom runtime image",
    f"ONNX Runtime, loading the model; {_OPERATORS}, StringNormalizer: the default is en_US",
    reason=Reason.UNSUPPORTED_OPERATOR,
)
REFUSED_EXTERNAL: Final = _external(
    "external-data-refused",
    "external data that ONNX Runtime cannot use for a reason that no other rule covers",
    Reason.EXTERNAL_DATA_MISSING.remedy,
    "ONNX Runtime, loading the model",
)
BACKEND_CRASHED: Final = Rule(
    "backend-fails",
    "a backend that crashes on the model, or cannot be initialized",
    Reason.BACKEND_CRASHED.remedy,
    "the backend, loading the model in a separate process",
    reason=Reason.BACKEND_CRASHED,
)
NODES_ELSEWHERE: Final = _unsupported(
    "nodes-elsewhere",
    "nodes that the backend does not run, so the CPU provider does",
    Reason.NODE_FALLBACK.remedy,
    "the session's own record of which provider runs which node (onnxruntime pull request 26781)",
)
CHECKER: Final = _warning(
    "onnx-checker",
    "what onnx.checker, with shape inference, reports of a model that ONNX Runtime loads",
    "serving needs no change, though other tools may refuse the model",
    "onnx.checker.check_model(full_check=True)",
)
DECLARED_SHAPES: Final = _warning(
    "declared-output-shape",
    "outputs whose shape differs from the declared one, when the model runs at its smallest sizes, or with a"
    " batch larger by one",
    "export again with these dimensions dynamic: clients, simplifiers and engine builders trust the"
    " declared shape",
    "onnxruntime, execution_frame.cc, VerifyOutputSizes (issue 12284); docs/IR.md of onnx",
)
SMALLER_BATCH: Final = Rule(
    "smaller-batch",
    "runs so slow or so large that engines are built for a smaller batch than the default",
    "declare the sizes of requests in spec.shapes",
    "ONNX Runtime, a run of batch 1 on the CPU: processor time and memory",
    severity="warning",
    reason=Reason.SHAPE_PROFILE_MISSING,
)
ONE_SIZE: Final = _warning(
    "one-size",
    "dynamic dimensions with which the model runs at one size only",
    "export again with these dimensions fixed, or without the operator that needs that size:"
    " requests of other sizes fail",
    "ONNX Runtime, running the model; often a Squeeze, or a Reshape to constants",
)
NAN_ANSWERS: Final = Rule(
    "nan-answers",
    "weights that are NaN, and NaN in every output of the run",
    "train or export again: such weights give NaN for every input",
    "IEEE 754-2019, 6.2: NaN propagates through products and sums",
)
CUSTOM_DOMAIN: Final = Rule(
    "custom-domain",
    "operators of domains that neither the runtime image nor the model's functions define; of domain trt,"
    " TensorRT's parser decides where it builds the engine",
    "add the library that implements them to spec.extensions (for tokenizers and image decoders an entry"
    " with type ONNXRuntimeExtensions), or export without them",
    f"ONNX Runtime's own list of operators; {_REFUSED}; onnx.checker accepts it",
    operators.custom_domain,
    reason=Reason.CUSTOM_DOMAIN_UNSUPPORTED,
)
UNKNOWN_OPERATOR: Final = Rule(
    "unknown-operator",
    "operators that an imported domain does not have (a warning for backends that need a device)",
    Reason.UNSUPPORTED_OPERATOR.remedy,
    f"ONNX Runtime's own list of operators; {_REFUSED}",
    operators.find_unknown_operators,
    reason=Reason.UNSUPPORTED_OPERATOR,
)
OUTSIDE_THE_ENGINE: Final = Rule(
    "outside-the-engine",
    "operators that TensorRT lacks, where only engines of complete models load (backend tensorrt)",
    "replace the operators when exporting, or name another backend in spec.backends: tensorrt-rtx loads partial"
    " engines, cuda needs none",
    f"{_TENSORRT}; GetCapability of ONNX Runtime 1.31.1's TensorRT provider",
    compiled.outside_the_engine,
    reason=Reason.UNSUPPORTED_OPERATOR,
)
UNSERVED_TYPE: Final = Rule(
    "type-not-served",
    "inputs and outputs of types that the engine's provider refuses (backend tensorrt-rtx)",
    "export these inputs and outputs as float32, int32 or int64, or choose another backend in"
    " spec.backends",
    "IsSupportedInputOutputDataType of NVIDIA/TensorRT-RTX-EP-ABI; the shipped plug-in 0.5.0",
    compiled.find_unserved_types,
    reason=Reason.PROVIDER_REFUSED,
)
NO_OUTPUT: Final = Rule(
    "no-servable-output",
    "models without outputs, or whose outputs are all sequences, maps or other non-tensors, or bfloat16 beside inputs of"
    " strings",
    "export it with tensors as inputs and outputs (of scikit-learn models: options={'zipmap': False}),"
    " beside strings with float32 instead of bfloat16",
    _PROTOCOL,
    types.no_output_served,
)
NAN_IN_WEIGHTS: Final = _warning(
    "nan-in-weights",
    "NaN in weights; tensors that are all NaN and not multiplied are fill values",
    "find out whether training diverged, or the file was damaged",
    "IEEE 754-2019, 6.2: NaN propagates through products and sums; onnx.checker accepts it",
    weights.nan_in_weights,
)

RULES: Final[tuple[Rule, ...]] = (
    NOT_A_MODEL,
    NESTED_TOO_DEEP,
    FILE_TOO_LARGE,
    TOO_MANY_NODES,
    NOT_TEXT,
    Rule(
        "recursive-function",
        "functions of the model that call themselves",
        _EXPORT_AGAIN,
        f"{_PROTO}, ModelProto.functions; {_REFUSED}",
        structure.recursive_functions,
    ),
    Rule(
        "cycle",
        "nodes that depend on each other in a cycle",
        _EXPORT_AGAIN,
        f"{_IR}: a graph MUST be free of cycles; {_REFUSED}",
        structure.cycles,
    ),
    Rule(
        "undefined-value",
        "values that are read, or are outputs, and defined nowhere",
        _EXPORT_AGAIN,
        f"{_IR}, Names Within a Graph; {_REFUSED}",
        structure.find_undefined_values,
    ),
    Rule(
        "no-inputs",
        "a model without inputs",
        _EXPORT_AGAIN,
        "Open Inference Protocol v2: a request has inputs",
        structure.no_inputs,
    ),
    Rule(
        "empty-name",
        "inputs, outputs and values without a name where they are required",
        _EXPORT_AGAIN,
        f"{_IR}: an empty name stands for an omitted optional input or output; {_REFUSED}",
        names.empty_names,
    ),
    Rule(
        "duplicate-value",
        "values that are defined more than once",
        _RENAME,
        f"{_IR}: single static assignment; {_REFUSED}",
        names.duplicate_values,
    ),
    Rule(
        "duplicate-node-name",
        "nodes of one graph with the same name",
        _RENAME,
        f"{_IR}: names must be unique within a namespace; {_REFUSED} (issues 8811 and 10706)",
        names.duplicate_node_names,
    ),
    Rule(
        "control-character",
        "control characters in names, which terminals interpret and which break log lines",
        _RENAME,
        f"{_IR}: names MUST be C90 identifiers; CWE-150 and CWE-117",
        names.control_characters,
    ),
    Rule(
        "tensor-shape",
        "constant tensors of negative or overflowing size, or of an undefined type",
        _EXPORT_AGAIN,
        f"{_PROTO}, TensorProto; {_REFUSED}",
        tensors.impossible_shapes,
    ),
    Rule(
        "tensor-data",
        "constant tensors with more or less data than their shape needs",
        _EXPORT_AGAIN,
        f"{_PROTO}, TensorProto.raw_data; {_REFUSED}",
        tensors.wrong_amount_of_data,
    ),
    Rule(
        "input-too-large",
        "inputs of more than 1 TiB at their smallest sizes",
        "export with the intended dimensions, or make them dynamic and set spec.shapes",
        "no request can be that large",
        tensors.enormous_inputs,
    ),
    Rule(
        "input-not-servable",
        "inputs that are not tensors, or of a type that the protocol lacks",
        "export it with tensors as inputs and outputs",
        _PROTOCOL,
        types.inputs_not_served,
    ),
    OUTSIDE_THE_ENGINE,
    UNSERVED_TYPE,
    NO_OUTPUT,
    REFUSED_INVALID,
    NAN_ANSWERS,
    _external(
        "external-data-outside",
        "external data outside the model's folder: .., absolute paths, links that leave it",
        "save the data in plain files beside the model: huggingface_hub's snapshot_download(local_dir=...)"
        " does so, while its cache and mounted ConfigMaps consist of links",
        f"{_EXTERNAL}; onnx pull request 7717; {_REFUSED} (issue 27353)",
        external.outside_folder,
    ),
    _external(
        "external-data-missing",
        "external data files that do not exist",
        Reason.EXTERNAL_DATA_MISSING.remedy,
        f"{_EXTERNAL}; {_REFUSED}",
        external.missing_files,
    ),
    _external(
        "external-data-irregular",
        "external data that is a folder, a pipe, a socket or a device",
        "save the data in plain files beside the model",
        "onnx.checker: external data must be a regular file; onnx pull request 7717",
        external.irregular_files,
    ),
    _external(
        "external-data-stretch",
        "offsets and lengths of external data that are invalid, or do not match the tensor's shape",
        "save the model again with onnx.save_model(save_as_external_data=True)",
        f"{_EXTERNAL}, offset and length; {_REFUSED}; onnx.checker accepts it",
        external.invalid_ranges,
    ),
    _external(
        "external-data-short",
        "external data files that end before their tensors do",
        "upload the complete file again",
        f"{_EXTERNAL}; {_REFUSED}; onnx.checker 1.23 accepts it",
        external.short_files,
    ),
    REFUSED_EXTERNAL,
    Rule(
        "no-opset-import",
        "models that import no operator set",
        "add the one it was exported for: model.opset_import.append(onnx.helper.make_opsetid('', 17))",
        f"{_PROTO}, ModelProto.opset_import: MUST have at least one entry; {_REFUSED}",
        operators.no_import,
    ),
    IR_TOO_NEW,
    OPSET_TOO_NEW,
    Rule(
        "training-operator",
        "operators of the training domains",
        "export the model for inference, as model.eval() and torch.onnx.export do",
        "docs/Operators-preview-training.md of onnx; ONNX Runtime's inference builds lack them",
        operators.training_operators,
        reason=Reason.CUSTOM_DOMAIN_UNSUPPORTED,
    ),
    CUSTOM_DOMAIN,
    UNKNOWN_OPERATOR,
    Rule(
        "deprecated-operator",
        "operators that the model's opset has deprecated (a warning for backends that need a device)",
        "export again with an exporter that supports the opset: Upsample became Resize, Scatter"
        " became ScatterElements",
        f"docs/Changelog.md of onnx; {_REFUSED}",
        operators.find_deprecated_operators,
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    REFUSED_OPERATOR,
    NO_LOCALE,
    BACKEND_CRASHED,
    SHAPES_INVALID,
    SHAPES_MISSING,
    DECLARED_SHAPES,
    SMALLER_BATCH,
    ONE_SIZE,
    CHECKER,
    NODES_ELSEWHERE,
    NAN_IN_WEIGHTS,
    _warning(
        "infinity-in-weights",
        "infinity in weights that are multiplied; masks and bounds elsewhere are valid",
        "find out whether training diverged, or a conversion to float16 overflowed",
        "IEEE 754-2019, 6.1 and 7.2: infinity times zero is NaN; onnx.checker accepts it",
        weights.infinity_in_weights,
    ),
    _warning(
        "half-overflow",
        "constants beyond 65504 that are cast to float16, and infinite float16 constants of Add and Mul",
        "keep these nodes in float32 when converting (op_block_list of onnxconverter-common)",
        f"{_OPERATORS}, Cast: out of range becomes infinity; IEEE 754-2019, 4.3",
        weights.half_overflow,
    ),
    Rule(
        "half-range",
        "weights beyond 65504, such as variances of BatchNormalization, where spec.precision or spec.quantization.rest is FP16",
        "fold BatchNormalization before converting, or keep these nodes in float32",
        "IEEE 754-2019, 4.3; measured: a text detector's masks overlap 63% once a variance is clipped",
        weights.half_range,
        severity="warning",
        reason=Reason.PRECISION_UNSUPPORTED,
    ),
    _warning(
        "integer-overflow",
        "integer constants out of the range of the type that they are cast to",
        "export with constants of the smaller type",
        f"{_OPERATORS}, Cast: the result for integers out of range is undefined",
        weights.integer_overflow,
    ),
    _unsupported(
        "integer-narrowed",
        "64-bit integer constants that do not fit 32 bits, on backend openvino",
        "choose another backend in spec.backends, or export with smaller numbers",
        "OpenVINO, CPU Device, Supported Model Precision: INT32; measured with 2025.4",
        weights.find_narrowed_integers,
    ),
    _unsupported(
        "float64",
        "float64 where the backend is for a GPU",
        "export in float32",
        f"{_TENSORRT}: DOUBLE is cast down to FLOAT; CUDA C++ Programming Guide, arithmetic throughput",
        types.double_precision,
    ),
    _unsupported(
        "strings",
        "strings where the backend does not support them",
        "process strings before the model, or serve it on backend cpu",
        f"docs/OperatorKernels.md of onnxruntime; {_TENSORRT}",
        types.strings,
    ),
    _unsupported(
        "control-flow",
        "If, Loop and Scan where TensorRT parses the model",
        "build the engine: it shows whether TensorRT accepts them; nodes that it refuses run outside it",
        f"{_TENSORRT}: If, Loop, Scan; TensorRT's operator page of If; measured with TensorRT-RTX 1.7",
        compiled.control_flow,
    ),
    _unsupported(
        "sparse-tensor",
        "sparse initializers and constants where TensorRT parses the model",
        "save them as dense tensors",
        f"{_TENSORRT}: Constant; TensorRT-RTX 1.7 refuses them",
        tensors.sparse_tensors,
    ),
    _unsupported(
        "asymmetric-quantization",
        "quantization with unsigned types or zero points other than 0 where TensorRT parses the model",
        "quantize with signed types and symmetric ranges (onnxruntime.quantization: QInt8,"
        " ActivationSymmetric), or give the float model and spec.precision INT8",
        f"{_TENSORRT}: QuantizeLinear, DequantizeLinear; measured with TensorRT-RTX 1.7",
        compiled.asymmetric,
    ),
    _unsupported(
        "integer-operator",
        "dynamic and operator-by-operator quantization where TensorRT parses the model",
        "give the float model and spec.precision INT8, or quantize statically in QDQ form",
        f"{_TENSORRT}: ConvInteger, MatMulInteger, DynamicQuantizeLinear, QLinearConv, QLinearMatMul",
        compiled.integer_operators,
    ),
    Rule(
        "training-mode",
        "Dropout and BatchNormalization in training mode: answers differ, or change with every request",
        "export in evaluation mode, as model.eval() and torch.onnx.export do",
        f"{_OPERATORS}: Dropout and BatchNormalization, training_mode; measured with ONNX Runtime 1.31",
        operators.training_mode,
        severity="warning",
        reason=Reason.PARITY_FAILED,
    ),
    Rule(
        "random-operator",
        "operators that draw random numbers",
        "export with the noise as an input, if answers must be reproducible",
        f"{_OPERATORS}: RandomNormal, RandomUniform, their Like variants, Bernoulli, Multinomial",
        operators.random_operator,
        severity="warning",
        reason=Reason.PARITY_FAILED,
    ),
    _unsupported(
        "experimental-operator",
        "operators of preview and experimental domains",
        "export with released operators",
        f"{_IR}: versions of operator sets; docs/Versioning.md of onnx",
        operators.experimental_operator,
    ),
    _warning(
        "opset-not-imported",
        "operators of domains of which the model imports no version",
        "add it: model.opset_import.append(onnx.helper.make_opsetid(domain, version))",
        f"{_IR}: a model MUST name the operator sets that it relies on; onnx.checker refuses it",
        operators.domain_not_imported,
    ),
    _warning(
        "opset-imported-twice",
        "domains of which the model imports two versions",
        "keep the one that the model was exported for",
        f"{_PROTO}, OperatorSetIdProto; runtimes use either",
        operators.find_double_import,
    ),
    Rule(
        "external-data-linked",
        "external data that is a symbolic link inside the model's folder",
        "save the data in plain files beside the model",
        "onnx.checker and onnx.load refuse links (onnx pull requests 7686 and 7717); ONNX Runtime follows them",
        external.find_linked_files,
        severity="warning",
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    _warning(
        "output-left-out",
        "outputs that no response can carry, where others can be served",
        "export them as tensors if clients need them, beside inputs of strings not in bfloat16",
        _PROTOCOL,
        types.outputs_left_out,
    ),
    _warning(
        "duplicate-initializer",
        "initializers of the same name",
        _RENAME,
        f"{_PROTO}, GraphProto.initializer: the name MUST be unique; ONNX Runtime uses the last",
        names.duplicate_initializers,
    ),
    _warning(
        "duplicate-output",
        "outputs that are listed twice",
        "list each once",
        f"{_IR}, Names Within a Graph; responses name each output once",
        names.duplicate_outputs,
    ),
    _warning(
        "input-is-initializer",
        "initializers that are inputs too, from IR version 4 on",
        "export with keep_initializers_as_inputs=False",
        f"{_IR}: a caller may replace them; onnxruntime, graph.cc, on constant folding",
        names.overridable_initializers,
    ),
    _warning(
        "names-differ-in-case",
        "inputs, or outputs, whose names differ only in case",
        _RENAME,
        "case-insensitive clients confuse them",
        names.names_differ_in_case,
    ),
    _warning(
        "unwieldy-name",
        "inputs and outputs whose names are longer than the resource accepts",
        _RENAME,
        "InferenceModel, spec.shapes and spec.parity: at most 256 characters",
        names.long_names,
    ),
)


def judge(subject: Subject) -> list[Finding]:
    """Return the findings of the rules that need no session, at most one per rule."""
    return [
        rule.finding(hit)
        for rule in RULES
        if rule.check is not None and (hit := rule.check(subject)) is not None
    ]


def finding(rule: Rule, message: str, nodes: tuple[str, ...] = ()) -> Finding:
    """Return the finding of a rule for what was observed while the model was loaded or run."""
    return rule.finding(Hit(message, nodes))
