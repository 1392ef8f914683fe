"""Every rule: what it finds, what to do, and who says so. docs/rules.md shows this table.

An error stops the model, so it must be certain: what ONNX Runtime itself refuses to load, or what
cannot be served. Everything else is a warning. The order is that of the report.
"""

from typing import Final

from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.report import Finding

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
_SEEN: Final = "ONNX Runtime 1.31 refuses it"
_TENSORRT: Final = "docs/operators.md of onnx-tensorrt, for TensorRT 10"
_PROTOCOL: Final = "Open Inference Protocol v2, tensor data types"
_EXPORT_AGAIN: Final = "export the model again"
_RENAME: Final = "rename them before exporting, or in the graph with onnx.helper"

NOT_A_MODEL: Final = Rule(
    "not-a-model",
    "a file that is no ONNX model, is cut off, or holds no graph",
    REMEDIES[Reason.INVALID_MODEL],
    f"{_PROTO}, ModelProto; protobuf's encoding",
)
NESTED_TOO_DEEP: Final = Rule(
    "nested-too-deep",
    "bodies inside bodies beyond what protobuf parsers follow",
    "export the model with fewer control-flow operators inside each other",
    "protobuf's limit of 100 nested messages, which is about 31 bodies; ONNX Runtime has it too",
)
FILE_TOO_LARGE: Final = Rule(
    "file-too-large",
    "an .onnx file of 2 GiB or more",
    REMEDIES[Reason.MODEL_TOO_LARGE],
    f"protobuf's limit; {_EXTERNAL}",
    reason=Reason.MODEL_TOO_LARGE,
)
TOO_MANY_NODES: Final = Rule(
    "too-many-nodes",
    f"more than {structure.MOST_NODES} nodes, once the model's functions are unfolded",
    "export loops as Loop or Scan instead of unrolling them",
    "measured: ONNX Runtime 1.31 loads 100,000 nodes in 7 s, and may take quadratic time",
    structure.unfolded_functions,
    reason=Reason.MODEL_TOO_LARGE,
)
NOT_TEXT: Final = Rule(
    "not-text",
    "names that are no UTF-8",
    _RENAME,
    f"{_PROTO}: strings of protobuf are UTF-8; Python cannot ask ONNX Runtime for such names",
)
OPSET_TOO_NEW: Final = Rule(
    "opset-beyond-runtime",
    "an opset that the runtime image does not load, and that the model cannot be brought down from",
    REMEDIES[Reason.OPSET_UNSUPPORTED],
    "docs/Versioning.md of onnxruntime; the image's own answer",
    reason=Reason.OPSET_UNSUPPORTED,
)
IR_TOO_NEW: Final = Rule(
    "ir-version-beyond-runtime",
    "an IR version that the runtime image does not load, with features that came with it",
    REMEDIES[Reason.IR_VERSION_UNSUPPORTED],
    "docs/Versioning.md of onnxruntime; the image's own answer",
    reason=Reason.IR_VERSION_UNSUPPORTED,
)
NO_SHAPES: Final = Rule(
    "shapes-missing",
    "open dimensions, but for the first, that spec.shapes gives no sizes for an engine",
    REMEDIES[Reason.SHAPE_PROFILE_MISSING],
    "TensorRT's developer guide, Working with Dynamic Shapes; other backends need none",
    reason=Reason.SHAPE_PROFILE_MISSING,
)
BAD_SHAPES: Final = Rule(
    "shapes-contradict",
    "sizes in spec.shapes that do not fit the model",
    REMEDIES[Reason.SHAPE_PROFILE_INVALID],
    "the model's own declaration",
    reason=Reason.SHAPE_PROFILE_INVALID,
)
REFUSED_INVALID: Final = Rule(
    "runtime-refuses",
    "what ONNX Runtime refuses for a reason that no other rule has",
    REMEDIES[Reason.INVALID_MODEL],
    "ONNX Runtime, loading the model",
)
REFUSED_OPERATOR: Final = Rule(
    "operator-not-implemented",
    "operators that the backend lacks, or lacks for the types at hand",
    REMEDIES[Reason.UNSUPPORTED_OPERATOR],
    "ONNX Runtime and the backend, loading the model; docs/OperatorKernels.md of onnxruntime",
    reason=Reason.UNSUPPORTED_OPERATOR,
)
NO_LOCALE: Final = Rule(
    "locale-missing",
    "strings changed by the rules of a language that is not installed where the model is loaded",
    "export with locale C (skl2onnx: options={TfidfVectorizer: {'locale': 'C'}}), or install the"
    " locale in a runtime image of your own",
    f"ONNX Runtime, loading the model; {_OPERATORS}, StringNormalizer: the default is en_US",
    reason=Reason.UNSUPPORTED_OPERATOR,
)
REFUSED_EXTERNAL: Final = Rule(
    "external-data-refused",
    "external data that ONNX Runtime cannot use for a reason that no other rule has",
    REMEDIES[Reason.EXTERNAL_DATA_MISSING],
    "ONNX Runtime, loading the model",
    reason=Reason.EXTERNAL_DATA_MISSING,
)
BACKEND_CRASHED: Final = Rule(
    "backend-fails",
    "a backend that crashes on the model, or cannot be made",
    REMEDIES[Reason.BACKEND_CRASHED],
    "the backend, loading the model in a process of its own",
    reason=Reason.BACKEND_CRASHED,
)
ELSEWHERE: Final = Rule(
    "nodes-elsewhere",
    "nodes that the backend leaves to the CPU",
    REMEDIES[Reason.NODE_FALLBACK],
    "the session's own record of which provider runs which node (onnxruntime pull request 26781)",
    severity="warning",
    reason=Reason.UNSUPPORTED_OPERATOR,
)
CHECKER: Final = Rule(
    "onnx-checker",
    "what onnx.checker, with shape inference, has against a model that ONNX Runtime loads",
    "nothing has to be done for serving, though other tools may refuse the model",
    "onnx.checker.check_model(full_check=True)",
    severity="warning",
)
DECLARED_SHAPES: Final = Rule(
    "declared-output-shape",
    "outputs of another shape than is declared, when the model runs once at its smallest",
    "export again with these dimensions open: clients, simplifiers and engine builders trust what is"
    " declared",
    "onnxruntime, execution_frame.cc, VerifyOutputSizes (issue 12284); docs/IR.md of onnx",
    severity="warning",
)
SMALLER_BATCH: Final = Rule(
    "smaller-batch",
    "runs so long or so large that engines are built for fewer rows than the default",
    "declare the sizes that requests have in spec.shapes",
    "ONNX Runtime, a run of batch 1 on the CPU: processor time and memory",
    severity="warning",
    reason=Reason.SHAPE_PROFILE_MISSING,
)
ONE_SIZE: Final = Rule(
    "one-size",
    "dimensions that are open, with which the model runs at one size alone",
    "export again with these dimensions fixed, or without the operator that needs that size:"
    " requests of other sizes fail",
    "ONNX Runtime, running the model; often a Squeeze, or a Reshape to constants",
    severity="warning",
)
NAN_ANSWERS: Final = Rule(
    "nan-answers",
    "weights that are NaN, and NaN in every output of the run",
    "train or export again: from such weights no input gets an answer",
    "IEEE 754-2019, 6.2: NaN propagates through products and sums",
)
CUSTOM_DOMAIN: Final = Rule(
    "custom-domain",
    "operators of domains that neither the runtime image nor the model's functions define",
    "add the library that has them to spec.extensions, or export without them",
    f"ONNX Runtime's own list of operators; {_SEEN}; onnx.checker passes it",
    operators.custom_domain,
    reason=Reason.CUSTOM_DOMAIN_UNSUPPORTED,
)
UNKNOWN_OPERATOR: Final = Rule(
    "unknown-operator",
    "operators that an imported domain does not have (of backends that need a device: a warning)",
    REMEDIES[Reason.UNSUPPORTED_OPERATOR],
    f"ONNX Runtime's own list of operators; {_SEEN}",
    operators.unknown_operator,
    reason=Reason.UNSUPPORTED_OPERATOR,
)
OUTSIDE_THE_ENGINE: Final = Rule(
    "outside-the-engine",
    "operators that TensorRT has none of, where engines are loaded of whole models only (backend tensorrt)",
    "name backend tensorrt-rtx, which loads engines in parts, or cuda in spec.backends, or replace"
    " the operators when exporting",
    f"{_TENSORRT}; GetCapability of ONNX Runtime 1.31.1's TensorRT provider",
    compiled.outside_the_engine,
    reason=Reason.UNSUPPORTED_OPERATOR,
)
UNSERVED_TYPE: Final = Rule(
    "type-not-served",
    "inputs and outputs of types that the provider of the engine refuses (backend tensorrt-rtx)",
    "export these inputs and outputs as float32, int32 or int64, or choose another backend in"
    " spec.backends",
    "IsSupportedInputOutputDataType of NVIDIA/TensorRT-RTX-EP-ABI; the shipped plug-in 0.5.0",
    compiled.unserved_types,
    reason=Reason.PROVIDER_REFUSED,
)
NO_OUTPUT: Final = Rule(
    "no-servable-output",
    "models all of whose outputs are sequences, maps or the like",
    "export it with tensors as inputs and outputs (of scikit-learn models: options={'zipmap': False})",
    _PROTOCOL,
    types.no_output_served,
)
NAN_IN_WEIGHTS: Final = Rule(
    "nan-in-weights",
    "NaN in weights; tensors that are NaN throughout and not multiplied are fill values",
    "find out whether training diverged, or the file was damaged",
    "IEEE 754-2019, 6.2: NaN propagates through products and sums; onnx.checker passes it",
    weights.nan_in_weights,
    severity="warning",
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
        f"{_PROTO}, ModelProto.functions; {_SEEN}",
        structure.recursive_functions,
    ),
    Rule(
        "cycle",
        "nodes that wait for each other",
        _EXPORT_AGAIN,
        f"{_IR}: a graph MUST be free of cycles; {_SEEN}",
        structure.cycles,
    ),
    Rule(
        "undefined-value",
        "values that are read, or given out, and defined nowhere",
        _EXPORT_AGAIN,
        f"{_IR}, Names Within a Graph; {_SEEN}",
        structure.undefined_values,
    ),
    Rule(
        "no-inputs",
        "a model that nothing can be asked",
        _EXPORT_AGAIN,
        "a request to the Open Inference Protocol v2 has inputs",
        structure.no_inputs,
    ),
    Rule(
        "empty-name",
        "inputs, outputs and values without a name where they may not be left out",
        _EXPORT_AGAIN,
        f"{_IR}: an empty name stands for an optional input or output left out; {_SEEN}",
        names.empty_names,
    ),
    Rule(
        "duplicate-value",
        "values that are defined more than once",
        _RENAME,
        f"{_IR}: single static assignment; {_SEEN}",
        names.duplicate_values,
    ),
    Rule(
        "duplicate-node-name",
        "nodes of one graph with the same name",
        _RENAME,
        f"{_IR}: names must be unique within a namespace; {_SEEN} (issues 8811 and 10706)",
        names.duplicate_node_names,
    ),
    Rule(
        "control-character",
        "control characters in names, which terminals obey and logs break at",
        _RENAME,
        f"{_IR}: names MUST be C90 identifiers; CWE-150 and CWE-117",
        names.control_characters,
    ),
    Rule(
        "tensor-shape",
        "constant tensors of negative or uncountable size, or of no known type",
        _EXPORT_AGAIN,
        f"{_PROTO}, TensorProto; {_SEEN}",
        tensors.impossible_shapes,
    ),
    Rule(
        "tensor-data",
        "constant tensors with more or less data than their shape needs",
        _EXPORT_AGAIN,
        f"{_PROTO}, TensorProto.raw_data; {_SEEN}",
        tensors.wrong_amount_of_data,
    ),
    Rule(
        "input-too-large",
        "inputs of more than 1 TiB at their smallest",
        "export with dimensions that are meant, or leave them open and give spec.shapes",
        "no request carries them",
        tensors.enormous_inputs,
    ),
    Rule(
        "input-not-servable",
        "inputs that are no tensors, or of a type that requests have not",
        "export it with tensors as inputs and outputs",
        _PROTOCOL,
        types.inputs_not_served,
    ),
    OUTSIDE_THE_ENGINE,
    UNSERVED_TYPE,
    NO_OUTPUT,
    REFUSED_INVALID,
    NAN_ANSWERS,
    Rule(
        "external-data-outside",
        "external data outside the model's folder: .., absolute paths, links that lead out",
        "save the data in plain files beside the model: huggingface_hub's snapshot_download(local_dir=...)"
        " makes such, and its cache and mounted ConfigMaps are made of links",
        f"{_EXTERNAL}; onnx pull request 7717; {_SEEN} (issue 27353)",
        external.outside_folder,
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    Rule(
        "external-data-missing",
        "external data files that are not there",
        REMEDIES[Reason.EXTERNAL_DATA_MISSING],
        f"{_EXTERNAL}; {_SEEN}",
        external.missing_files,
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    Rule(
        "external-data-irregular",
        "external data that is a folder, a pipe, a socket or a device",
        "save the data in plain files beside the model",
        "onnx.checker: external data must be a regular file; onnx pull request 7717",
        external.irregular_files,
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    Rule(
        "external-data-stretch",
        "offsets and lengths of external data that cannot be, or do not fit the tensor's shape",
        "save the model again with onnx.save_model(save_as_external_data=True)",
        f"{_EXTERNAL}, offset and length; {_SEEN}; onnx.checker passes it",
        external.wrong_stretches,
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    Rule(
        "external-data-short",
        "external data files that end before their tensors do",
        "upload the file again, whole",
        f"{_EXTERNAL}; {_SEEN}; onnx.checker 1.23 passes it",
        external.short_files,
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    REFUSED_EXTERNAL,
    Rule(
        "no-opset-import",
        "models that import no operator set",
        "add one: model.opset_import.append(onnx.helper.make_opsetid('', 17)), of the version it was made for",
        f"{_PROTO}, ModelProto.opset_import: MUST have at least one entry; {_SEEN}",
        operators.no_import,
    ),
    IR_TOO_NEW,
    OPSET_TOO_NEW,
    Rule(
        "training-operator",
        "operators of the training domains",
        "export the model for inference, as model.eval() and torch.onnx.export do",
        "docs/Operators-preview-training.md of onnx; ONNX Runtime's inference builds have none of them",
        operators.training_operators,
        reason=Reason.CUSTOM_DOMAIN_UNSUPPORTED,
    ),
    CUSTOM_DOMAIN,
    UNKNOWN_OPERATOR,
    Rule(
        "deprecated-operator",
        "operators that the model's opset has taken away (of backends that need a device: a warning)",
        "export again with an exporter that knows the opset: Upsample became Resize, Scatter ScatterElements",
        f"docs/Changelog.md of onnx; {_SEEN}",
        operators.deprecated_operator,
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    REFUSED_OPERATOR,
    NO_LOCALE,
    BACKEND_CRASHED,
    BAD_SHAPES,
    NO_SHAPES,
    DECLARED_SHAPES,
    SMALLER_BATCH,
    ONE_SIZE,
    CHECKER,
    ELSEWHERE,
    NAN_IN_WEIGHTS,
    Rule(
        "infinity-in-weights",
        "infinity in what is multiplied; masks and bounds elsewhere are legal",
        "find out whether training diverged, or a conversion to float16 went past its range",
        "IEEE 754-2019, 6.1 and 7.2: infinity times zero is NaN; onnx.checker passes it",
        weights.infinity_in_weights,
        severity="warning",
    ),
    Rule(
        "half-overflow",
        "constants past 65504 that are cast to float16, and infinity that float16 adds or multiplies",
        "keep these nodes in float32 when converting (op_block_list of onnxconverter-common)",
        f"{_OPERATORS}, Cast: out of range becomes infinity; IEEE 754-2019, 4.3",
        weights.half_overflow,
        severity="warning",
    ),
    Rule(
        "half-range",
        "weights past 65504, such as variances of BatchNormalization, where spec.precision is FP16",
        "fold BatchNormalization before converting, or keep these nodes in float32",
        "IEEE 754-2019, 4.3; measured: a text detector's masks overlap 63% once a variance is cut off",
        weights.half_range,
        severity="warning",
        reason=Reason.PRECISION_UNSUPPORTED,
    ),
    Rule(
        "integer-overflow",
        "integer constants past the range of the type that they are cast to",
        "export with constants of the smaller type",
        f"{_OPERATORS}, Cast: what integers out of range become is undefined",
        weights.integer_overflow,
        severity="warning",
    ),
    Rule(
        "integer-narrowed",
        "64-bit integer constants past 32 bits, where backend openvino computes",
        "choose another backend in spec.backends, or export with smaller numbers",
        "OpenVINO, CPU Device, Supported Model Precision: INT32; measured with 2025.4",
        weights.narrowed_integers,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "float64",
        "float64 where the backend is for a GPU",
        "export in float32",
        f"{_TENSORRT}: DOUBLE is cast down to FLOAT; CUDA C++ Programming Guide, arithmetic throughput",
        types.double_precision,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "strings",
        "strings where the backend has none",
        "do what is done with strings before the model, or serve it on backend cpu",
        f"docs/OperatorKernels.md of onnxruntime; {_TENSORRT}",
        types.strings,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "control-flow",
        "If, Loop and Scan where TensorRT parses the model",
        "build the engine: it shows whether these are taken, and what is left runs outside of it",
        f"{_TENSORRT}: If, Loop, Scan; TensorRT's operator page of If; measured with TensorRT-RTX 1.7",
        compiled.control_flow,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "sparse-tensor",
        "sparse initializers and constants where TensorRT parses the model",
        "save them as dense tensors",
        f"{_TENSORRT}: Constant; TensorRT-RTX 1.7 refuses them",
        tensors.sparse_tensors,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "asymmetric-quantization",
        "quantisation with unsigned types or zero points other than 0 where TensorRT parses the model",
        "quantise with signed types and symmetric ranges (onnxruntime.quantization: QInt8,"
        " ActivationSymmetric), or give the float model and spec.precision INT8",
        f"{_TENSORRT}: QuantizeLinear, DequantizeLinear; measured with TensorRT-RTX 1.7",
        compiled.asymmetric,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "integer-operator",
        "dynamic and operator-by-operator quantisation where TensorRT parses the model",
        "give the float model and spec.precision INT8, or quantise statically in QDQ form",
        f"{_TENSORRT}: ConvInteger, MatMulInteger, DynamicQuantizeLinear, QLinearConv, QLinearMatMul",
        compiled.integer_operators,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "training-mode",
        "Dropout and BatchNormalization that still train: answers differ, or change with every request",
        "export in evaluation mode, as model.eval() and torch.onnx.export do",
        f"{_OPERATORS}: Dropout and BatchNormalization, training_mode; measured with ONNX Runtime 1.31",
        operators.training_mode,
        severity="warning",
        reason=Reason.PARITY_FAILED,
    ),
    Rule(
        "random-operator",
        "operators that draw random numbers",
        "export with the noise as an input, if answers have to be the same",
        f"{_OPERATORS}: RandomNormal and its like, Bernoulli, Multinomial",
        operators.random_operator,
        severity="warning",
        reason=Reason.PARITY_FAILED,
    ),
    Rule(
        "experimental-operator",
        "operators of preview and experimental domains",
        "export with released operators",
        f"{_IR}: versions of operator sets; docs/Versioning.md of onnx",
        operators.experimental_operator,
        severity="warning",
        reason=Reason.UNSUPPORTED_OPERATOR,
    ),
    Rule(
        "opset-not-imported",
        "operators of domains that the model imports no version of",
        "add it: model.opset_import.append(onnx.helper.make_opsetid(domain, version))",
        f"{_IR}: a model MUST name the operator sets that it relies on; onnx.checker refuses it",
        operators.domain_not_imported,
        severity="warning",
    ),
    Rule(
        "opset-imported-twice",
        "domains of which the model imports two versions",
        "leave the one that the model was made for",
        f"{_PROTO}, OperatorSetIdProto; runtimes take either",
        operators.imported_twice,
        severity="warning",
    ),
    Rule(
        "external-data-linked",
        "external data that is a symbolic link inside the model's folder",
        "save the data in plain files beside the model",
        "onnx.checker and onnx.load refuse links (onnx pull requests 7686 and 7717); ONNX Runtime takes them",
        external.linked_files,
        severity="warning",
        reason=Reason.EXTERNAL_DATA_MISSING,
    ),
    Rule(
        "output-left-out",
        "outputs that no answer can carry, beside others",
        "export them as tensors if clients need them",
        _PROTOCOL,
        types.outputs_left_out,
        severity="warning",
    ),
    Rule(
        "duplicate-initializer",
        "initializers of the same name",
        _RENAME,
        f"{_PROTO}, GraphProto.initializer: the name MUST be unique; ONNX Runtime takes the last",
        names.duplicate_initializers,
        severity="warning",
    ),
    Rule(
        "duplicate-output",
        "outputs that are listed twice",
        "list each once",
        f"{_IR}, Names Within a Graph; answers name each output once",
        names.duplicate_outputs,
        severity="warning",
    ),
    Rule(
        "input-is-initializer",
        "initializers that are inputs too, from IR version 4 on",
        "export with keep_initializers_as_inputs=False",
        f"{_IR}: a caller may replace them; onnxruntime, graph.cc, on constant folding",
        names.overridable_initializers,
        severity="warning",
    ),
    Rule(
        "names-differ-in-case",
        "inputs, or outputs, whose names are equal but for capitals",
        _RENAME,
        "clients that keep names regardless of case confuse them",
        names.names_differ_in_case,
        severity="warning",
    ),
    Rule(
        "unwieldy-name",
        "inputs and outputs with longer names than the resource takes",
        _RENAME,
        "InferenceModel, spec.shapes and spec.parity: at most 256 characters",
        names.unwieldy_names,
        severity="warning",
    ),
)


def judge(subject: Subject) -> list[Finding]:
    """Return what the rules that need no session find, at most one finding a rule."""
    return [
        rule.finding(hit)
        for rule in RULES
        if rule.check is not None and (hit := rule.check(subject)) is not None
    ]


def finding(rule: Rule, message: str, nodes: tuple[str, ...] = ()) -> Finding:
    """Return the finding of a rule that was seen while the model was loaded or run."""
    return rule.finding(Hit(message, nodes))
