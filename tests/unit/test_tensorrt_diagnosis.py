"""Every message of the libraries that is known, in their own words, as a reason and a sentence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.tensorrt import flavor, native, workspace
from enginewright_runtime.tensorrt.diagnosis import Circumstances, failure, sentence
from enginewright_runtime.tensorrt.flavor import FLAVORS
from enginewright_runtime.tensorrt.native import open_builder
from enginewright_runtime.tensorrt.results import BuildResult, ParserError

ABOUT = Circumstances(
    title="TensorRT-RTX",
    target="compute capability 8.9",
    label=lambda error: f"{error.name} ({error.operator})",
    operations={"/model.10/attn/MatMul": "/model.10/attn/MatMul (MatMul)"},
    inputs=("x [1, 8]",),
    workspace_bytes=8 << 20,
)
NO_DEVICE = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at"
    " /_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient"
    " for CUDA runtime version))"
)
BUILDER = "IBuilder::buildSerializedNetwork: Error Code "
USAGE = BUILDER + "4: API Usage Error ("
PLACE = " In validate at /_src/optimizer/api/network.cpp:4054)"
BUILD_ERRORS = [
    (
        BUILDER + "1: Myelin ([pass.cpp:337: check_turing_op_compatibility] Cannot compile operation"
        " '/model.10/attn/MatMul' for Turing (SM75): FP32 GEMM is not supported. In compileGraph at"
        " /_src/optimizer/myelin/codeGenerator.cpp:2012)",
        Reason.PRECISION_UNSUPPORTED,
        ("at /model.10/attn/MatMul (MatMul): Cannot compile operation '/model.10/attn/MatMul' for"
        " Turing (SM75): FP32 GEMM is not supported; set spec.precision to FP16"),
    ),
    (
        BUILDER + "1: Myelin ([pass.cpp:1500: run_passes] Cannot compile for target(s) sm75, because"
        " the model contains HW-specific datatypes: b16. In compileGraph at /_src/x.cpp:2012)",
        Reason.PRECISION_UNSUPPORTED,
        ("compute capability 8.9: Cannot compile for target(s) sm75, because the model contains"
        " HW-specific datatypes: b16;"),
    ),
    (
        USAGE + "Quantized constant (wq) is only allowed before DQ or PLUGIN_V2. In match at /_src/q.cpp:1)",
        Reason.PRECISION_UNSUPPORTED,
        "Quantized constant (wq) is only allowed before DQ",
    ),
    (
        USAGE + "Network has dynamic or shape inputs, but no optimization profile has been defined." + PLACE,
        Reason.SHAPE_PROFILE_MISSING,
        "input x [1, 8]: Network has dynamic",
    ),
    (
        USAGE + "Dynamic input tensor x is missing dimensions in profile 0." + PLACE,
        Reason.SHAPE_PROFILE_MISSING,
        "the sizes of input x: Dynamic input tensor x is missing",
    ),
    (
        USAGE + "Dimension mismatch for tensor pixels and profile 0. At dimension axis 1, profile has"
        " min=7, opt=7, max=7 but tensor has 8." + PLACE,
        Reason.SHAPE_PROFILE_INVALID,
        "the sizes of input pixels: Dimension mismatch",
    ),
    (
        USAGE + "Dynamic-shaped input tensor x has 2 dimensions but profile 0 has 1 dimensions." + PLACE,
        Reason.SHAPE_PROFILE_INVALID,
        "the sizes of input x:",
    ),
    (
        USAGE + "Input tensor state has static dimensions that don't match kOPT dimensions in profile"
        " index 0. Input dimensions are [1,576] but profile dimensions are [2,576]." + PLACE,
        Reason.SHAPE_PROFILE_INVALID,
        "the sizes of input state:",
    ),
    (
        "IOptimizationProfile::isValid: Error Code 4: API Usage Error (Invalid optimization profiles"
        " for input tensors x, please ensure that the optimization profiles satisfy MIN<=OPT<=MAX." + PLACE,
        Reason.SHAPE_PROFILE_INVALID,
        "the sizes of input x: Invalid optimization profiles",
    ),
    (
        USAGE + "kOPT values for profile 0 violate shape constraints: p2o.Add.248: dimensions not"
        " compatible for elementwise: broadcast has incompatible dimensions: 21 != 20." + PLACE,
        Reason.SHAPE_PROFILE_INVALID,
        "21 != 20; correct the input's entry in spec.shapes",
    ),
    (
        USAGE + "IShuffleLayer r: reshape wildcard -1 has no integer solution. Reshaping [1,3] to"
        " [-1,8]. In operator() at /_src/optimizer/common/shape/shapeContext.cpp:4633 In"
        " analyzeShapes at /_src/optimizer/shapeof/graphShapeAnalyzer.cpp:2825)",
        Reason.SHAPE_PROFILE_INVALID,
        ("do not fit the model: x [1, 8]: IShuffleLayer r: reshape wildcard -1 has no integer"
        " solution. Reshaping [1,3] to [-1,8];"),
    ),
    (
        ("[localCheckMacros.cpp::getErrorStr::132] Error Code 2: OutOfMemory (Requested size was"
        " 11802164 bytes.)"),
        Reason.BUILD_OUT_OF_MEMORY,
        ("needs a workspace of 11802164 bytes, and spec.build.workspace allows 8.0 MiB; raise"
        " spec.build.workspace"),
    ),
    (
        ("[codeGenerator.cpp::createMyelinGraph::1203] Error Code 2: Internal Error (Assertion"
        " mContext.maxScratchSize > 0 failed. Compiling this graph requires workspace memory greater"
        " than 0. Please increase the workspace memory provided to the builder. In createMyelinGraph"
        " at /_src/x.cpp:1203)"),
        Reason.BUILD_OUT_OF_MEMORY,
        "needs more workspace, and",
    ),
    (
        BUILDER + "1: Myelin ([myelin_graph.h:1295: attachExceptionMsgToGraph] Unexpected exception"
        " std::bad_alloc In buildAndSerializeMyelinGraph at /_src/x.cpp:403)",
        Reason.OUT_OF_MEMORY,
        "exceeds its memory limit; raise spec.build.resources.limits.memory",
    ),
    (
        BUILDER + "1: Unexpected exception Resource temporarily unavailable",
        Reason.OUT_OF_MEMORY,
        "exceeds its memory limit; raise spec.build.resources.limits.memory",
    ),
    (
        ("[graphScope.cpp::analyze::471] Error Code 2: Internal Error (Assertion tScope.getType() !="
        " ScopeType::kUNDEFINED failed.  In analyze at /_src/optimizer/common/graphScope.cpp:471)"),
        Reason.BUILD_FAILED,
        ("cannot build it for compute capability 8.9: Assertion tScope.getType() !="
        " ScopeType::kUNDEFINED failed; read the builder's errors"),
    ),
    (NO_DEVICE, Reason.DRIVER_TOO_OLD, "cannot use the device"),
    (
        "CUDA initialization failure with error: 100. Please check your CUDA installation",
        Reason.DRIVER_MISSING,
        "cannot use the device: CUDA initialization failure with error: 100",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason", "reported"), BUILD_ERRORS)
def test_builds(text: str, reason: Reason, reported: str) -> None:
    finding = failure(BuildResult(built=False, parsed=True, errors=(text,)), ABOUT)
    assert finding.reason is reason
    assert reported in finding.message
    assert "/_src" not in finding.message
    assert "::build" not in finding.message


def test_missing_device_is_not_the_cause() -> None:
    text = BUILD_ERRORS[5][0]
    answer = BuildResult(built=False, parsed=True, errors=(NO_DEVICE, text, NO_DEVICE))
    assert failure(answer, ABOUT).reason is Reason.SHAPE_PROFILE_INVALID


@pytest.mark.parametrize(
    ("free", "reason", "reported"),
    [
        (
            600 << 20,
            Reason.BUILD_OUT_OF_MEMORY,
            "in the 600.0 MiB that are free on the device: Cuda Runtime: invalid resource handle; free",
        ),
        (80 << 30, Reason.BUILD_FAILED, "cannot build it for compute capability 8.9: Cuda Runtime"),
        (None, Reason.BUILD_FAILED, "cannot build it for compute capability 8.9: Cuda Runtime"),
    ],
)
def test_a_device_whose_memory_ends_while_kernels_load(
    free: int | None, reason: Reason, reported: str
) -> None:
    """As TensorRT 10.6 reports it on an H200 with 0.6 GiB left: it names neither memory nor a size."""
    errors = (
        BUILDER + "1: Cask (no further information)",
        "[checkMacros.cpp::catchCudaError::212] Error Code 1: Cuda Runtime (invalid resource handle)",
    )
    answer = BuildResult(built=False, parsed=True, errors=errors)
    refused = failure(answer, replace(ABOUT, free_bytes=free))
    assert (refused.reason, reported in refused.message) == (reason, True), refused.message


def test_a_message_that_says_why_is_the_reason_in_little_memory_too() -> None:
    text, reason, _ = BUILD_ERRORS[5]
    answer = BuildResult(built=False, parsed=True, errors=(text,))
    assert failure(answer, replace(ABOUT, free_bytes=1)).reason is reason


def parser(code: str, operator: str, wording: str, name: str = "node") -> ParserError:
    return ParserError(code, 0, name, operator, wording)


PARSER_ERRORS = [
    ([parser("UNSUPPORTED_NODE", "Det", "false", "det")], Reason.UNSUPPORTED_OPERATOR, "of det (Det);"),
    (
        [parser("INVALID_NODE", "Foo", 'creator && "Plugin not found, are the plugin name"')],
        Reason.UNSUPPORTED_OPERATOR,
        "of node (Foo), nor a plugin;",
    ),
    (
        [parser("UNSUPPORTED_NODE", "Det", "false", f"det_{index}") for index in range(7)],
        Reason.UNSUPPORTED_OPERATOR,
        "det_4 (Det) and 2 more;",
    ),
    (
        [parser("INVALID_NODE", "DequantizeLinear", "shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported.")],
        Reason.PRECISION_UNSUPPORTED,
        "at node (DequantizeLinear)",
    ),
    (
        [parser("INVALID_NODE", "DequantizeLinear", "node: input has type Int32 but must have type FP8, FP4, Int4")],
        Reason.PRECISION_UNSUPPORTED,
        "must have type FP8",
    ),
    (
        [parser("INVALID_NODE", "Loop", "cannot infer the shape of scan output")],
        Reason.BUILD_FAILED,
        "cannot parse the model at node (Loop): cannot infer the shape of scan output;",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("errors", "reason", "reported"), PARSER_ERRORS)
def test_parsing(errors: list[ParserError], reason: Reason, reported: str) -> None:
    finding = failure(BuildResult(built=False, parsed=False, parser=tuple(errors)), ABOUT)
    assert finding.reason is reason
    assert reported in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "WeightsContext.cpp:203: Failed to open file: /work/prepared/model/slider.onnx.data",
        (
            "WeightsContext.cpp:222: ONNX external weights offset/length out of range for file:"
            " /work/prepared/model/slider.onnx.data (offset=20, length=4, file size=22)"
        ),
        "Relative paths to parent (../) are not allowed in ONNX external weights!",
    ],
)
def test_weights_that_cannot_be_read(text: str) -> None:
    finding = failure(BuildResult(built=False, parsed=False, errors=(text,)), ABOUT)
    assert finding.reason is Reason.EXTERNAL_DATA_MISSING
    assert "/work" not in finding.message


def test_values_of_an_input_that_is_a_shape() -> None:
    finding = failure(BuildResult(built=False, parsed=True, unprofiled=("size",)), ABOUT)
    assert finding.reason is Reason.SHAPE_PROFILE_MISSING
    assert "needs a shape profile of input size; add it to spec.shapes" in finding.message


def test_a_library_that_gives_no_reason() -> None:
    for answer in (BuildResult(built=False, parsed=True), BuildResult(built=False, parsed=False)):
        finding = failure(answer, ABOUT)
        assert finding.reason is Reason.BUILD_FAILED
        assert "gives no reason" in finding.message


def test_a_sentence_is_not_endless() -> None:
    assert len(sentence("word " * 1000)) < 320


SIZE = "Error Code 2: OutOfMemory (Requested size was {} bytes.)"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        # the limit was too small for any kernel, and may not rise
        ([SIZE.format(64 * MIB)], [32]),
        # the device has less free than was asked for: kernels that want as much are left out
        ([SIZE.format(30 * MIB), SIZE.format(30 * MIB)], [32]),
        ([SIZE.format(1000 * MIB)] * 2, [2048, 500]),
        # that limit was too small, but there is a size between
        ([SIZE.format(1000 * MIB), SIZE.format(700 * MIB)], [2048, 500, 700]),
        ([SIZE.format(1000 * MIB), SIZE.format(1000 * MIB)], [2048, 500]),
        (
            [SIZE.format(1000 * MIB), SIZE.format(700 * MIB), SIZE.format(600 * MIB)],
            [2048, 500, 700, 300],
        ),
        (["OutOfMemory (no further information)"] * 3, [128, 64, 32, 16]),
        (["due to insufficient workspace"], [128]),
    ],
)
def test_the_next_workspace(errors: list[str], expected: list[int]) -> None:
    space: workspace.Workspace | None = workspace.Workspace.first(expected[0] * MIB)
    lines = []
    for error in [*errors, "due to insufficient workspace"]:
        if space is None:
            break
        lines.append(space.limit // MIB)
        assert workspace.is_out_of_memory([error])
        space = space.after([error])
    assert lines == expected
    assert space is None


def return_null(_: object) -> None:
    raise TypeError("pybind11::init(): factory function returned nullptr")


@pytest.mark.parametrize("factory", [return_null, lambda _: None, lambda _: object()])
@pytest.mark.parametrize(
    ("errors", "reason", "said"),
    [
        (["CUDA initialization failure with error: 35."], Reason.DRIVER_TOO_OLD, "error: 35"),
        (["Unable to load library: libcuda.so.1"], Reason.DRIVER_MISSING, "libcuda.so.1"),
        ([], Reason.DRIVER_MISSING, "it gives no reason"),
    ],
)
def test_a_library_that_makes_no_builder_lacks_its_driver(
    factory: Callable[[object], object], errors: list[str], reason: Reason, said: str
) -> None:
    library = SimpleNamespace(Builder=factory)
    with pytest.raises(StageFailure) as caught:
        open_builder(library, FLAVORS["tensorrt"], SimpleNamespace(errors=errors))
    assert caught.value.reason is reason
    assert caught.value.cause.startswith("TensorRT cannot use the device: ")
    assert said in caught.value.cause


NO_KERNELS = (
    "Error Code 6: API Usage Error (Unable to load library: libnvinfer_builder_resource_sm90.so.10.15.1:"
    " libnvinfer_builder_resource_sm90.so.10.15.1: cannot open shared object file: No such file or directory)"
)
LACKING = "TensorRT in this image builds no engine for the device: it has no libnvinfer_builder_resource_sm90"


def test_a_builder_without_kernels_for_its_device_lacks_a_library() -> None:
    library = SimpleNamespace(Builder=return_null)
    with pytest.raises(StageFailure) as caught:
        open_builder(
            library,
            FLAVORS["tensorrt"],
            SimpleNamespace(errors=[f"createInferBuilder: {NO_KERNELS}"]),
        )
    assert (caught.value.reason, caught.value.cause) == (Reason.PROVIDER_MISSING, LACKING)


# fault: Engines | TensorRT has no kernels of its builder for the device, as Maven Central's | the builder: `ProviderMissing`
#   with the library that it lacks, and images that have it | at once
@pytest.mark.parametrize(
    "errors",
    [
        (f"IBuilder::buildSerializedNetwork: {NO_KERNELS}",),
        (
            f"IBuilder::buildSerializedNetwork: {NO_KERNELS}",
            NO_DEVICE,
            "Internal error: plan is empty",
        ),
    ],
)
def test_a_build_without_kernels_for_its_device_lacks_a_library(errors: tuple[str, ...]) -> None:
    answer = BuildResult(built=False, parsed=True, errors=errors)
    refused = failure(answer, replace(ABOUT, title="TensorRT"))
    assert (refused.reason, refused.cause) == (Reason.PROVIDER_MISSING, LACKING)
    assert "use an image with NVIDIA's packages of TensorRT" in refused.message


class Severity(int):
    """A severity of NVIDIA's logger, as far as it is used."""

    name = "ERROR"


class Library:
    """As much of NVIDIA's module as a build touches; one of its functions creates nothing."""

    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    MemoryPoolType = SimpleNamespace(WORKSPACE=0)
    IProgressMonitor = object

    class ILogger:
        """Severities, the base of a logger."""

        ERROR, INFO = Severity(1), Severity(3)

    def __init__(self, missing: str, logged: str, *, raises: bool = False) -> None:
        self._missing = missing
        self._logged = logged
        self._raises = raises

    def Builder(self, logger: Any) -> SimpleNamespace:  # noqa: N802 - NVIDIA's name
        def create(name: str, made: object) -> Callable[..., object]:
            return lambda *_: self._create(name, made, logger)

        cache = SimpleNamespace(serialize=lambda: b"")
        config = SimpleNamespace(
            get_memory_pool_limit=lambda _: 1 << 30,
            create_timing_cache=create("create_timing_cache", cache),
            set_timing_cache=lambda *_, **__: True,
        )
        parser = SimpleNamespace(parse_from_file=lambda _: True, num_errors=0)
        self.OnnxParser = create("OnnxParser", parser)
        network = SimpleNamespace(num_inputs=0, num_layers=0)
        return SimpleNamespace(
            create_network=create("create_network", network),
            create_builder_config=create("create_builder_config", config),
            create_optimization_profile=create("create_optimization_profile", object()),
            build_serialized_network=create("build_serialized_network", b"plan"),
        )

    @staticmethod
    def init_libnvinfer_plugins(*_: object) -> bool:
        return True

    def _create(self, name: str, made: object, logger: Any) -> object:
        if name != self._missing:
            return made
        if self._logged:
            logger.log(self.ILogger.ERROR, self._logged)
        if self._raises:
            return_null(name)
        return None


def build_with(library: Library, folder: Path, monkeypatch: pytest.MonkeyPatch) -> BuildResult:
    monkeypatch.setattr(flavor, "load", lambda *_: library)
    return native.build(
        backend="tensorrt",
        version="10.6.0",
        model=folder / "model.onnx",
        engine=folder / "model.engine",
        log=folder / "build.log",
        progress=folder / "progress.json",
        span=(0, 100),
        profiles=(),
        compute_capability=None,
        workspace_bytes=None,
        optimization_level=None,
        timing_cache=folder / "timing.cache",
        layers=folder / "layers.json",
        plugins=(),
    )


# fault: Engines | a function of TensorRT's returns nothing | the builder: `DriverMissing`, `OutOfMemory` or
#   `BuildFailed` with what the library logged last | at once
@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize(
    ("missing", "title"),
    [
        ("create_network", "network"),
        ("OnnxParser", "parser"),
        ("create_builder_config", "configuration"),
        ("create_optimization_profile", "profile"),
    ],
)
@pytest.mark.parametrize(
    ("logged", "reason", "reported"),
    [
        ("CUDA initialization failure with error: 35.", Reason.DRIVER_TOO_OLD, "error: 35"),
        ("Error Code 1: Cuda Runtime (none (cudaError 100))", Reason.DRIVER_MISSING, "none"),
        ("std::bad_alloc", Reason.OUT_OF_MEMORY, "exceeds its memory limit"),
        (NO_KERNELS, Reason.PROVIDER_MISSING, LACKING),
        ("Error Code 3: API Usage Error (it is unfit)", Reason.BUILD_FAILED, "{}: it is unfit"),
        ("", Reason.BUILD_FAILED, "{}: it gives no reason"),
    ],
)
def test_a_library_that_creates_nothing_has_its_reason_reported(
    missing: str,
    title: str,
    raises: bool,
    logged: str,
    reason: Reason,
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StageFailure) as caught:
        build_with(Library(missing, logged, raises=raises), tmp_path, monkeypatch)
    assert caught.value.reason is reason
    assert reported.format(f"TensorRT creates no {title}") in caught.value.cause


@pytest.mark.parametrize("missing", ["create_timing_cache", "build_serialized_network"])
def test_a_build_that_returns_nothing_has_what_was_logged(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(missing, "Error Code 3: API Usage Error (it is unfit)")
    result = build_with(library, tmp_path, monkeypatch)
    assert result.built is (missing == "create_timing_cache")
    assert "it is unfit" in result.errors[0]
