"""What engines can be built for, and which of them can be served: each table against its library."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.engines import (
    PROVIDERS,
    Capabilities,
    serves,
)
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.engine import builder, verify
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.probe import probe
from enginewright_runtime.session import tensorrt_rtx
from onnx import TensorProto

from tests.support import rtx_devices
from tests.support.engines import EnginePlace, build_mixed, build_request, matmul, recipe
from tests.support.fatbins import code_of
from tests.support.programs import run_program
from tests.support.tensorrt_claims import TensorRtProvider, engine, relu
from tests.unit.test_engines_served import RTX

CAPABILITIES = (
    *("5.0", "6.1", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0"),
    *("10.0", "10.3", "11.0", "12.0", "12.1", "13.0"),
)


# fault: Engines | an engine for GPUs on which no provider serves it (T4, A100, H100 with
#   TensorRT-RTX) | the table of what is served: on apply, in `preflight`, at the start of the
#   build | before the build
def test_the_provider_itself_says_which_devices_it_takes(tmp_path: Path) -> None:
    """The shipped plug-in's own check, run with a device of each compute capability."""
    taken = rtx_devices.find_taken(CAPABILITIES, tmp_path)
    assert taken == {capability for capability in CAPABILITIES if serves(RTX, capability)}


def test_the_provider_itself_says_which_types_it_takes() -> None:
    """Its `GetCapability` tests types of inputs and outputs by one mask of bits: both tests of it."""
    types = {
        graphs.inputs_of(_of_type(item))[0].dtype: item for item in TensorProto.DataType.values()
    }
    mask = sum(1 << types[name] for name in PROVIDERS[RTX].types or () if name in types)
    where, size = next(
        address
        for name, address in rtx_devices.symbols().items()
        if "GetCapabilityImpl" in name and name.endswith(".part.0")
    )
    code = rtx_devices.library().read_bytes()[where : where + size]
    assert code.count(mask.to_bytes(4, "little")) == 2
    assert metadata.version("onnxruntime-ep-nv-tensorrt-rtx-cu13") == "0.5.0", "look at it again"


# fault: Engines | an engine for a part of a model, which ONNX Runtime's TensorRT provider does
#   not load | `validate`, else the parser; `plan` and `preflight` report it | before the build
def test_the_tensorrt_provider_claims_an_engine_of_the_whole_model_only(
    gpu_python: Path, tmp_path: Path
) -> None:
    """The real onnxruntime-gpu: what it claims it tries to read, and what it does not has no provider."""
    provider = TensorRtProvider(gpu_python, tmp_path)
    claimed = "TensorRT EP could not deserialize engine from cache"
    left = "Provider type for EPContext node with name 'part-"
    assert claimed in provider.explain_refusal(engine("x", "y"))
    parts = [
        provider.explain_refusal(engine("x", "h"), relu("h", "y")),
        provider.explain_refusal(relu("x", "h"), engine("h", "y")),
        provider.explain_refusal(engine("x", "h"), engine("h", "y")),
    ]
    assert all(left in wording and claimed not in wording for wording in parts), parts
    assert not PROVIDERS["tensorrt"].loads_parts


# fault: Engines | a GPU for which ONNX Runtime's CUDA provider has no code (V100, B200) | the
#   table of what is served; in a pod `ProviderRefused` | before a pod is created, else at its
#   start
def test_the_cuda_provider_holds_code_for_these_devices(gpu_python: Path) -> None:
    """The real onnxruntime-gpu: machine code for each, and nothing that newer devices compile."""
    shown = run_program(
        [str(gpu_python), "-c", "import onnxruntime; print(onnxruntime.__path__[0])"]
    ).stdout
    code = code_of(Path(shown.strip()) / "capi/libonnxruntime_providers_cuda.so")
    assert not code.ptx
    assert PROVIDERS["cuda"].capabilities == Capabilities(code.machine, binary=True)


def _of_type(element: int) -> Any:
    model = matmul()
    model.graph.input[0].type.tensor_type.elem_type = element
    return model


# fault: Engines | an engine for GPUs on which no provider serves it (T4, A100, H100 with
#   TensorRT-RTX)
@pytest.mark.parametrize("capability", ["7.5", "8.0", "9.0"])
def test_no_engine_is_built_that_cannot_be_served(capability: str, tmp_path: Path) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    place.prepare_model(matmul())
    outcomes = place.build_engine(place.engine_task(recipe(capability)))
    assert list(outcomes) == ["lookup", "build"]
    report = outcomes["build"].report
    assert report.reason is Reason.ENGINE_INCOMPATIBLE
    assert "choose backend tensorrt or cuda" in report.outcome
    assert not list((tmp_path / "work").rglob("*.engine"))


def test_builder_and_provider_carry_one_version() -> None:
    assert tensorrt_rtx.TensorRtRtxBackend().conflict() is None
    version = metadata.version("tensorrt-rtx-cu13-libs")
    assert tensorrt_rtx.TensorRtRtxBackend().version() == version
    assert probe().backends[RTX] == version


@pytest.fixture
def parts_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the provider of the library that is here load what that of backend tensorrt loads."""
    monkeypatch.setitem(PROVIDERS, RTX, PROVIDERS["tensorrt"])


# fault: Engines | an engine for a part of a model, which ONNX Runtime's TensorRT provider does
#   not load
@pytest.mark.usefixtures("parts_refused")
def test_no_part_is_built_where_none_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(StageFailure) as caught:
        builder.build(build_request(tmp_path, build_mixed()))
    assert caught.value.reason is Reason.UNSUPPORTED_OPERATOR
    assert caught.value.nodes == ("det_bad (Det)",)
    message = caught.value.message
    assert (
        "has no implementation of det_bad (Det); ONNX Runtime's TensorRT provider loads" in message
    )
    assert "name backend tensorrt-rtx, which loads engines in parts, or cuda" in message
    assert not list(tmp_path.rglob("*.engine"))


# fault: Engines | an engine for a part of a model, which ONNX Runtime's TensorRT provider does
#   not load
def test_a_model_in_parts_is_never_published_where_none_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = build_request(tmp_path, build_mixed())
    engine = builder.build(asked).engine
    folder = tmp_path / "engine/model"
    verify.check_wrapper(folder, engine, asked.manifest)
    monkeypatch.setitem(PROVIDERS, RTX, PROVIDERS["tensorrt"])
    with pytest.raises(StageFailure, match="loads an engine only if it contains the whole model"):
        verify.check_wrapper(folder, engine, asked.manifest)


@pytest.mark.usefixtures("parts_refused")
def test_a_whole_model_is_built_and_wrapped_as_one_node(tmp_path: Path) -> None:
    asked = build_request(tmp_path, matmul())
    engine = builder.build(asked).engine
    verify.check_wrapper(tmp_path / "engine/model", engine, asked.manifest)
    assert len(graphs.parse(tmp_path / "engine/model/model.onnx").graph.node) == 1
