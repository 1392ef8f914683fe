"""preflight on real models: what the stages say, as a verdict, a table and an exit code."""

from pathlib import Path

import onnx
import pytest
from enginewright_cli.preflight import options, targets
from enginewright_contract.processors import Feature, timing_mismatch
from enginewright_runtime.session import processor

from tests.support import broken_models as broken
from tests.support.preflight_runs import HELD, Desk
from tests.support.preparing import Workplace
from tests.support.quantizing import dense

BOTH = ("--target", "sm89,cpu", "--backend", "cpu")


def test_a_good_model_passes_on_the_cpu_and_as_an_engine(models: Path, desk: Desk) -> None:
    magika = next(models.rglob("standard_v3_3/model.onnx"))
    code, result = desk.run_json(magika, *BOTH)
    assert (code, result["verdict"]) == (0, "pass")
    assert list(result["targets"]) == ["sm89", "cpu"]
    assert result["model"]["opset"] == 15
    assert result["model"]["nodes"] == 95
    assert result["model"]["inputs"][0]["name"] == "bytes"
    engine, cpu = result["targets"]["sm89"], result["targets"]["cpu"]
    assert engine["nodes_accelerated"] == engine["nodes_total"] == cpu["nodes_total"]
    assert engine["engine_bytes"] > 1_000_000
    assert engine["build_seconds"] > 0
    assert cpu["latency"]["p50"] > 0
    assert result["findings"] == []


def test_a_warning_has_its_own_remedy(desk: Desk) -> None:
    model = desk.save(broken.lower_case())
    code, result = desk.run_json(model, *BOTH)
    assert code == 1
    findings = {item["message"].partition(":")[0]: item for item in result["findings"]}
    locale = "locale xx_XX, which lower (StringNormalizer) needs, is not installed here"
    assert findings[locale]["severity"] == "error"
    assert findings[locale]["remedy"].startswith("export with locale C")
    strings = "backend tensorrt-rtx does not support strings, so nodes that read or write them run on the CPU"
    assert findings[strings]["severity"] == "warning"
    assert findings[strings]["remedy"] == (
        "process strings before the model, or serve it on backend cpu"
    )
    assert not [item for item in result["findings"] if "/onnxruntime_src/" in item["message"]]


def test_a_refused_model_names_nodes_reason_and_remedy_once(desk: Desk) -> None:
    path = desk.save(broken.one_node("Frobnicate", "com.example"))
    code, result = desk.run_json(path, *BOTH)
    assert (code, result["verdict"]) == (1, "fail")
    (finding,) = [item for item in result["findings"] if item["severity"] == "error"]
    assert finding["reason"] == "CustomDomainUnsupported"
    assert sorted(finding["targets"]) == ["cpu", "sm89"]
    assert finding["remedy"]
    assert finding["remedy"] not in finding["message"]
    assert finding["nodes"]
    assert all(item["reason"] == finding["reason"] for item in result["targets"].values())


def test_a_shape_that_is_missing_is_refused_for_an_engine_alone(desk: Desk) -> None:
    path = desk.save(broken.open_dimensions("batch", "width"))
    code, result = desk.run_json(path, *BOTH)
    assert (code, result["targets"]["cpu"]["verdict"]) == (1, "pass")
    assert result["targets"]["sm89"]["reason"] == "ShapeProfileMissing"
    (finding,) = [item for item in result["findings"] if item["severity"] == "error"]
    assert "shapes: [{input: x, min: [1, 1]" in finding["remedy"]
    code, result = desk.run_json(path, *BOTH, "--shapes", "x=1x2:2x4:4x8")
    assert (code, result["verdict"]) == (0, "pass")


@pytest.mark.parametrize(
    ("arguments", "wording"),
    [
        ([], "give a MODEL, or create enginewright.toml"),
        (["nothing-here.onnx"], "no such file"),
        (["{model}", "--tarets", "cpu"], "--target"),
        (["{model}", "--jobs", "none"], "Invalid value for '--jobs'"),
        (["{model}", "--target", "gpu"], "is not a target; did you mean cpu?"),
        (["{model}", "--target", "openvno"], "did you mean openvino?"),
        (["{model}", "--target", "h100", "--backend", "tensorrt-rtx"], "choose another --backend"),
        (["{model}", "--target", "sm89", "--backend", "cpu"], "runs on none of the targets sm89"),
        (["{model}", "--shapes", "x"], "write INPUT=MIN:OPT:MAX"),
        (["{model}", "--budget", "2%"], "write allow, or shares such as compute=2%,nodes=5%"),
        (["{model}", "--precision", "FP4"], "write one of FP32, FP16"),
        (["{model}", "--runtime-version", "9.9"], "unknown version; known versions: 1.16"),
    ],
)
def test_unusable_input_is_said_in_a_sentence(
    arguments: list[str], wording: str, desk: Desk
) -> None:
    path = desk.save(broken.relu())
    done = desk.run(*(argument.format(model=path) for argument in arguments))
    assert done.returncode == 64
    assert wording in done.stderr
    assert not done.stdout


def test_a_target_that_is_not_installed_is_not_known(desk: Desk) -> None:
    done = desk.run(desk.save(broken.relu()), "--target", "openvino")
    assert done.returncode == 2
    assert "needs backend openvino, which is not installed" in done.stderr


# fault: Commands | of preflight's targets, one needs a library that is not installed | the others are checked; it is
#   unknown, with what to install: exit code 2, or 1 if another fails | at once
@pytest.mark.parametrize(
    ("model", "code", "verdict"),
    [(broken.relu(), 2, "pass"), (broken.one_node("Frobnicate", "com.example"), 1, "fail")],
)
def test_targets_that_are_not_installed_stop_no_other(
    desk: Desk, model: onnx.ModelProto, code: int, verdict: str
) -> None:
    path = desk.save(model)
    given = (path, "--target", "openvino,cpu", "--backend", "cpu")
    ended, reported = desk.run_json(*given)
    targets = reported["targets"]
    assert (ended, tuple(targets)) == (code, ("openvino", "cpu"))
    assert targets["cpu"]["verdict"] == verdict
    assert (targets["openvino"]["verdict"], targets["openvino"]["reason"]) == (
        "unknown",
        "ProviderMissing",
    )
    why = "openvino: not checked: target openvino needs backend openvino, which is not installed"
    assert why in desk.run(*given).stdout


def test_the_table_is_plain_where_it_is_piped(desk: Desk) -> None:
    path = desk.save(broken.one_node("Frobnicate", "com.example"))
    done = desk.run(path, "--target", "cpu")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "CustomDomainUnsupported" in done.stdout
    assert "remedy: " in done.stdout
    assert desk.run(path, "--target", "cpu", "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("name", "backend", "capability"),
    [
        ("sm89", "tensorrt-rtx", "8.9"),
        ("SM_120", "tensorrt-rtx", "12.0"),
        ("sm75", "tensorrt", "7.5"),  # devices that TensorRT-RTX's provider does not serve
        ("sm90", "tensorrt", "9.0"),
        ("T4", "tensorrt", "7.5"),
        ("A100", "tensorrt", "8.0"),
        ("h100", "tensorrt", "9.0"),
        ("l4", "tensorrt-rtx", "8.9"),
        ("RTX 4090", "tensorrt-rtx", "8.9"),
        ("rtx3060ti", "tensorrt-rtx", "8.6"),
        ("cpu", "openvino", None),
        ("openvino", "openvino", None),
    ],
)
def test_targets(name: str, backend: str, capability: str | None) -> None:
    target = targets.parse(name)
    assert (target.backend, target.compute_capability) == (backend, capability)


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("cpu", "any"),  # of the processor that is to serve nothing is known
        ("cpu:AVX2", "any"),
        ("cpu:avx512", "any"),
        ("openvino:vnni", "exact"),
        ("cpu:amx", "exact"),
        ("cpu:asimddp", "exact"),
        ("sm89", None),
        ("cuda", None),
    ],
)
def test_the_kind_of_cpu_decides_the_form_of_int8(name: str, products: str | None) -> None:
    target = targets.parse(name)
    assert target.int8_products == products
    assert target.name == name.lower()
    with pytest.raises(targets.TargetError, match="cpu:avx512"):
        targets.parse("cpu:avx3")


# fault: Commands | latency on this machine given for another kind of CPU | `preflight --target
#   cpu:KIND`: `ProcessorMismatch`, no latency | at once
def test_each_kind_of_cpu_has_its_form(
    desk: Desk,
) -> None:
    here = processor.read()
    names = [f"cpu:{item.lower()}" for item in ("AVX2", "AVX512", "VNNI", "AMX")]
    model = desk.save(dense())
    _, document = desk.run_json(
        model, "--target", ",".join(names), "--precision", "INT8", "--backend", "cpu"
    )
    untimed = [name for name in names if timing_mismatch(here, Feature(name[4:].upper()))]
    said = {
        name
        for item in document["findings"]
        if item["reason"] == "ProcessorMismatch"
        for name in item["targets"]
    }
    assert set(untimed) <= said
    assert len(untimed) >= 3  # a machine is of one kind
    keys = [document["targets"][name].get("prepared_key") for name in names]
    assert keys[0] == keys[1] is not None
    for name in names[:2]:
        assert document["targets"][name]["verdict"] == ("warn" if name in untimed else "pass")
        assert ("latency" in document["targets"][name]) is (name not in untimed)
    for name in names[2:]:
        result = document["targets"][name]
        if here.exact_products:
            assert result["verdict"] == ("warn" if name in untimed else "pass")
            assert result["prepared_key"] == keys[2] != keys[0]
        else:
            assert (result["verdict"], result["reason"]) == ("unknown", "ProcessorMismatch")


def test_a_budget_and_its_shares() -> None:
    promise = options.promise("compute=2%,nodes=5%")
    assert (promise.policy, promise.max_compute_share, promise.max_node_share) == (
        "Budget",
        0.02,
        0.05,
    )
    assert options.promise(None).policy == "Forbid"
    assert options.promise("allow").policy == "Allow"


def test_the_rest_in_fp16_needs_a_quantized_precision() -> None:
    made = options.recipe(HELD, target_precision="FP8", rest_precision=options.rest("fp16"))
    assert made.rest == "FP16"
    assert options.recipe(HELD, rest_precision=options.rest("FP32")).quantization is None
    with pytest.raises(options.OptionError, match="add --precision INT8 or FP8"):
        options.recipe(HELD, target_precision="FP16", rest_precision="FP16")
    with pytest.raises(options.OptionError, match="write FP32 or FP16"):
        options.rest("BF16")


def test_the_limits_of_another_runtime_stand_in_the_recipe() -> None:
    made = options.recipe(HELD, runtime_version="1.17.3")
    assert (made.ort_version, made.max_opset, made.max_ir_version) == ("1.17.3", 20, 9)
    assert options.recipe(HELD).max_opset == HELD.max_opset


def test_the_newest_runtime_at_hand_is_in_the_table(tmp_path: Path) -> None:
    """A new ONNX Runtime in the lock brings its limits into the table, or this fails."""
    held = Workplace(tmp_path).probe()
    minor = ".".join(held.ort_version.split(".")[:2])
    assert options.RUNTIME_LIMITS[minor] == (held.max_opset, held.max_ir_version)
