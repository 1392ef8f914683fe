"""What processors are, what models may rely on, and that neither wrong answers nor false alarms come of it."""

import subprocess
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from enginewright_contract.keys import compute_prepared_key
from enginewright_contract.manifest import Manifest
from enginewright_contract.processors import (
    Feature,
    Processor,
    has_exact_products,
    mismatch,
    parse,
    timing_mismatch,
)
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.report import StageReport
from enginewright_contract.task import Int8Products, PrepareTask, Recipe, ServeTask
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize.forms import dynamic_form, form_of
from enginewright_runtime.prepare.quantize.saturation import saturable
from enginewright_runtime.session import processor
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.converting import recipe, run
from tests.support.optional import present
from tests.support.preparing import Workplace
from tests.support.processors import (
    TIMEOUT,
    needs_exact_products,
    python_without_vnni,
    without_vnni,
)
from tests.support.quantizing import cosine, dense, quantize_by, random, work
from tests.support.serving import Server, read_report

VNNI = Processor(architecture="x86_64", features=(Feature.AVX2, Feature.VNNI), exact_products=True)
AVX2 = Processor(architecture="x86_64", features=(Feature.AVX2,), exact_products=False)

# lines of /proc/cpuinfo, flags that decide nothing left out
EPYC_7003 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 7763 64-Core Processor
flags\t\t: fpu vme sse2 ssse3 fma sse4_1 sse4_2 avx f16c avx2 bmi2 vaes vpclmulqdq
"""
SAPPHIRE_RAPIDS = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: sse2 avx2 avx512f avx512dq avx_vnni avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8
"""
SKYLAKE = "model name : Intel(R) Xeon(R) CPU @ 2.00GHz\nflags : sse2 avx2 avx512f avx512bw\n"
ALDER_LAKE = "model name : 12th Gen Intel(R) Core(TM)\nflags : sse2 avx2 avx_vnni\n"
GRAVITON_3 = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd aes asimdhp asimddp sve asimdfhm i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
RISC_V = "processor\t: 0\nhart\t\t: 2\nisa\t\t: rv64imafdc\n"


@pytest.mark.parametrize(
    ("text", "architecture", "features", "exact"),
    [
        (EPYC_7003, "x86_64", ["AVX2"], False),
        (SAPPHIRE_RAPIDS, "x86_64", ["AVX2", "AVX512", "VNNI", "AMX"], True),
        (SKYLAKE, "x86_64", ["AVX2", "AVX512"], False),
        (ALDER_LAKE, "x86_64", ["AVX2", "VNNI"], True),
        (GRAVITON_3, "aarch64", ["ASIMDDP", "I8MM", "SVE"], True),
        (RISC_V, "riscv64", [], False),
        ("", "arm64", [], False),  # macOS has no such file
    ],
)
def test_the_features_that_the_kernel_reports(
    text: str, architecture: str, features: list[str], exact: bool
) -> None:
    facts = parse(text, architecture)
    assert [*facts.features] == features
    assert facts.architecture == architecture
    assert has_exact_products(facts.features) is exact
    assert architecture in facts.described


def test_only_features_of_all_cores_count() -> None:
    facts = parse(ALDER_LAKE + SKYLAKE, "x86_64")
    assert facts.features == (Feature.AVX2,)
    assert facts.model == "12th Gen Intel(R) Core(TM)"


def test_the_model_that_is_measured_is_what_onnx_writes() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "products",
        [value("x", TensorProto.UINT8, [1, 64])],
        [value("y", TensorProto.INT32, [1, 16])],
        [numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w")],
    )
    written = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    assert ModelProto.FromString(processor._PRODUCTS) == written


@pytest.mark.timeout(TIMEOUT)
def test_measured_products_agree_with_the_kernel() -> None:
    here = processor.read()
    assert here.exact_products is has_exact_products(here.features)
    program = (
        "from enginewright_runtime.session import processor; print(processor.read().to_json())"
    )
    ended = subprocess.run(
        [*without_vnni(), "-c", program], capture_output=True, check=True, timeout=TIMEOUT
    )
    emulated = Processor.model_validate_json(ended.stdout)
    assert emulated.exact_products is False
    assert Feature.VNNI not in emulated.features  # though /proc/cpuinfo is the host's


@pytest.mark.parametrize("unknown", ["saturable", "verified_on", "serving", "exact_products"])
def test_unknown_processors_raise_no_alarm(unknown: str) -> None:
    fields: dict[str, Any] = {"saturable": True, "verified_on": VNNI, "serving": AVX2}
    assert "outputs differ" in str(mismatch(**fields))
    if unknown == "exact_products":
        fields["serving"] = AVX2.model_copy(update={"exact_products": None})
    else:
        fields[unknown] = None
    assert mismatch(**fields) is None


def test_only_a_processor_that_gives_other_outputs_is_another_kind() -> None:
    other = VNNI.model_copy(update={"features": (*VNNI.features, Feature.AMX), "model": "other"})
    assert mismatch(saturable=True, verified_on=VNNI, serving=other) is None
    assert mismatch(saturable=True, verified_on=AVX2, serving=AVX2) is None
    assert mismatch(saturable=False, verified_on=VNNI, serving=AVX2) is None  # 7 bits, or no INT8
    message = present(mismatch(saturable=True, verified_on=AVX2, serving=VNNI))
    assert "exact on this processor" in message
    assert "saturating on the one" in message


def test_which_kind_of_processor_times_are_of() -> None:
    rapids = parse(SAPPHIRE_RAPIDS, "x86_64")
    assert timing_mismatch(rapids, Feature.AMX) is None
    assert "has AMX too" in str(timing_mismatch(rapids, Feature.VNNI))
    assert "has AVX512, VNNI, AMX too" in str(timing_mismatch(rapids, Feature.AVX2))
    epyc = parse(EPYC_7003, "x86_64")
    assert timing_mismatch(epyc, Feature.AVX2) is None
    assert "AMD EPYC 7763 64-Core Processor (x86_64: AVX2), has no VNNI" in str(
        timing_mismatch(epyc, Feature.VNNI)
    )
    graviton = parse(GRAVITON_3, "aarch64")
    assert timing_mismatch(graviton, Feature.I8MM) is None
    assert timing_mismatch(graviton, Feature.AVX2) is not None


def test_which_models_saturate(tmp_path: Path) -> None:
    feeds = {"x": random(4, 64)}
    for name, form, backend, expected in [
        ("reduced", form_of("INT8", "cpu"), "cpu", False),
        ("full", form_of("INT8", "cpu", "exact"), "cpu", True),
        ("full-openvino", form_of("INT8", "openvino", "exact"), "openvino", True),
        ("dynamic", dynamic_form(), "cpu", False),
        ("dynamic-full", dynamic_form("exact"), "cpu", True),
        ("signed", form_of("INT8", "tensorrt"), "cpu", False),  # ONNX Runtime sums these in 32 bits
        ("signed-openvino", form_of("INT8", "tensorrt"), "openvino", True),
    ]:
        path = quantize_by(form, dense(), feeds, tmp_path / name)
        assert saturable(graphs.parse(path), path.parent, backend) is expected, name
    assert not saturable(dense(), tmp_path, "cpu")


@pytest.fixture
def haswell(tmp_path: Path) -> Path:
    return python_without_vnni(tmp_path / "haswell")


def test_keys_of_all_other_models_stay() -> None:
    """The field is in no key of a model that has no INT8 form for CPUs."""
    recipe = Recipe(backend="cpu", ort_version="1.31.1", max_opset=26, max_ir_version=13)
    assert "int8_products" not in recipe.model_dump(mode="json", exclude_none=True)
    keys = {
        compute_prepared_key("d", recipe.model_copy(update={"int8_products": products}), {})
        for products in (None, "any", "exact")
    }
    assert len(keys) == 3


# the whole way, on the real kernels of both kinds


def prepare(root: Path, model: onnx.ModelProto, **recipe: Any) -> tuple[ServeTask, Manifest]:
    """Prepare a model here with the real stages and fetch the artefact."""
    root.mkdir()
    place = Workplace(root, in_process=True)
    key = place.complete(place.task(place.put("model.onnx", model), **recipe)).published.key
    assert place.fetch_artifact(key).code == 0
    manifest = Manifest.model_validate_json((root / "artifact/manifest.json").read_bytes())
    return ServeTask(model="m", revision="r1", prepared_key=key, backend="cpu"), manifest


# fault: Processors | INT8 verified with VNNI serves without it | 7-bit weights; the server's
#   golden samples | before the pod is ready
@pytest.mark.timeout(TIMEOUT)
def test_int8_that_was_proved_here_serves_without_vnni(tmp_path: Path, haswell: Path) -> None:
    root = tmp_path / "a"
    task, manifest = prepare(root, dense(), precision="INT8", int8_products="any")
    assert (manifest.precision, manifest.saturable) == ("INT8", False)
    assert manifest.processor == processor.read()
    with Server(root, task, python=haswell, fresh=True, start_seconds=TIMEOUT) as server:
        reported = server.get("/v2/models/m/execution").json()
    assert reported["processor"]["exact_products"] is False
    assert reported["details"]["proofs"]["golden_samples"] > 0


# fault: Processors | 8-bit INT8 on a processor that saturates | the server: `ProcessorMismatch` |
#   before the model is loaded
@needs_exact_products
@pytest.mark.timeout(TIMEOUT)
def test_int8_for_exact_products_is_refused_where_they_saturate(
    tmp_path: Path, haswell: Path
) -> None:
    root = tmp_path / "a"
    task, manifest = prepare(root, dense(), precision="INT8", int8_products="exact")
    assert manifest.saturable
    with Server(root, task):
        pass
    server = Server(root, task, python=haswell, fresh=True)
    code = server.wait(TIMEOUT)
    server.stop()
    termination_message = read_report(root)
    assert code == ExitCode.PERMANENT
    assert termination_message.reason is Reason.PROCESSOR_MISMATCH
    assert "INT8 products are saturating on this processor" in termination_message.outcome
    assert "spec.cpuFeatures" in termination_message.outcome


_QUANTIZE = """
import sys
from pathlib import Path
from enginewright_contract.task import PrepareTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.prepare.quantize.stage import run
for root in sys.argv[1:]:
    task = PrepareTask.model_validate_json((Path(root) / "task.json").read_bytes())
    try:
        report = run(task, Paths.under(Path(root))).to_json()
    except StageFailure as failure:
        report = f"{failure.reason}: {failure.message}"
    (Path(root) / "report").write_text(report)
"""


# fault: Processors | a form for exact products verified where they saturate | stage `quantize` |
#   in the prepare Job
@pytest.mark.timeout(TIMEOUT)
def test_stage_quantize_knows_the_processor_that_it_runs_on(tmp_path: Path) -> None:
    feeds = {"x": random(4, 64)}
    full = quantize_by(form_of("INT8", "cpu", "exact"), dense(), feeds, tmp_path / "q")
    asked = recipe(precision="INT8", int8_products="exact")
    for name, model, how in (("asked", dense(), asked), ("came", full, recipe())):
        root = tmp_path / name
        root.mkdir()
        work(root, model, [feeds], how)
        task = PrepareTask(job="job-1", source_uri="pvc://models/m.onnx", recipe=how)
        (root / "task.json").write_text(task.to_json())
    roots = [str(tmp_path / name) for name in ("asked", "came")]
    subprocess.run([*without_vnni(), "-c", _QUANTIZE, *roots], check=True, timeout=TIMEOUT)
    refused = (tmp_path / "asked/report").read_text()
    assert refused.startswith(
        "ProcessorMismatch: the INT8 form is for processors whose INT8 products"
    )
    report = StageReport.model_validate_json((tmp_path / "came/report").read_text())
    assert [finding.reason for finding in report.findings] == [Reason.PROCESSOR_MISMATCH]
    assert "reduce_range" in report.findings[0].cause


_PRODUCTS: Final[tuple[Int8Products, ...]] = ("any", "exact")
_OPENVINO = """
import sys
import numpy as np
import onnxruntime as ort
for model in sys.argv[2:]:
    session = ort.InferenceSession(model, providers=["OpenVINOExecutionProvider"])
    assert session.get_providers()[0] == "OpenVINOExecutionProvider"
    np.save(f"{model}.npy", session.run(None, dict(np.load(sys.argv[1])))[0])
"""


# fault: Processors | OpenVINO saturates too | 7-bit weights | prevented
@pytest.mark.timeout(TIMEOUT)
def test_openvino_saturates_alike_and_is_right_with_weights_of_7_bits(
    tmp_path: Path, openvino_python: Path
) -> None:
    feeds = {"x": random(4, 64)}
    np.savez(tmp_path / "x.npz", x=feeds["x"])
    paths = [
        quantize_by(form_of("INT8", "openvino", products), dense(), feeds, tmp_path / products)
        for products in _PRODUCTS
    ]
    command = without_vnni(python=str(openvino_python))
    arguments = [str(tmp_path / "x.npz"), *map(str, paths)]
    subprocess.run([*command, "-c", _OPENVINO, *arguments], check=True, timeout=TIMEOUT)
    expected = run(dense(), feeds)[0]
    reduced, full = (1 - cosine(expected, np.load(f"{path}.npy")) for path in paths)
    assert reduced < 1e-3
    assert full > 2e-3
