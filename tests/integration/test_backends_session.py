"""Sessions on real ONNX Runtime: strict about where they run, and reported when they do not."""

import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core import limits
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.ort_messages import plain, status
from enginewright_runtime.session import base, libraries, loading

from tests.support import broken_models as broken
from tests.support.preparing import Workplace


def build_mixed_model() -> onnx.ModelProto:
    """Return a model of which OpenVINO takes the matrix product and not the determinant."""
    return broken.parse_text(
        """(float[2, 3, 3] x) => (float[2] y) {
        [product] a = MatMul(x, x) [relu] b = Relu(a) [sum] c = Add(b, x) [determinant] y = Det(c) }"""
    )


def test_the_cpu_backend_runs_every_node(tmp_path: Path) -> None:
    loaded = loading.create("cpu", broken.save(build_mixed_model(), tmp_path), threads=1)
    assert loaded.placement.nodes == {"CPUExecutionProvider": 4}
    assert (loaded.placement.total, loaded.placement.share) == (4, 1.0)
    assert loaded.placement.elsewhere == ()
    x = np.tile(np.eye(3, dtype=np.float32), (2, 1, 1))
    assert loaded.session.run(None, {"x": x})[0].tolist() == [8.0, 8.0]


def test_a_model_that_folds_to_nothing_is_no_fallback(tmp_path: Path) -> None:
    model = broken.no_inputs()
    placement = loading.create("cpu", broken.save(model, tmp_path)).placement
    assert (placement.total, placement.share) == (0, 1.0)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("[scale] q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", "scale"),
        (
            """[either] y = If (c) <
            then_branch = t () => (float[b, 4] o) {
                [inner] q, s, z = DynamicQuantizeLinear(x) o = DequantizeLinear(q, s, z) },
            else_branch = e () => (float[b, 4] p) { p = Neg(x) }>""",
            "inner",
        ),
        ("q = QuantizeLinear(x, step) y = DequantizeLinear(q, step)", ""),
    ],
    ids=["graph", "body", "given scale"],
)
def test_nodes_that_scale_by_the_range_of_all_rows_are_named(
    tmp_path: Path, text: str, node: str
) -> None:
    model = broken.parse_text(
        f"(float[b, 4] x, bool c) => (float[b, 4] y) {{ {text} }}",
        broken.initializer("step", 0.1),
    )
    placement = loading.create("cpu", broken.save(model, tmp_path), threads=1).placement
    assert placement.by_range == (f"{node} (DynamicQuantizeLinear)" if node else "")


def test_a_backend_that_is_not_in_the_image() -> None:
    with pytest.raises(
        StageFailure, match=r"its onnxruntime 1\.31\.1 has tensorrt-rtx, cpu"
    ) as caught:
        loading.create("openvino", Path("none.onnx"))
    assert caught.value.reason is Reason.PROVIDER_MISSING


def test_two_distributions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "onnxruntime-openvino", RECORD="onnxruntime/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(base, "owners", libraries.owners.__wrapped__)  # without what it remembers
    with pytest.raises(StageFailure, match="2 distributions own the folder onnxruntime") as caught:
        base.distribution()
    assert caught.value.reason is Reason.PROVIDER_MISSING


def install(folder: Path, name: str, **files: str) -> None:
    """Write what pip leaves of a distribution that it has installed, beside the module itself."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in files.items():
        (info / file.replace("_txt", ".txt")).write_text(text)


def test_owners_of_modules_are_found_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "declared", top_level_txt="one\ntwo\n", RECORD="three.py,,\n")
    install(tmp_path, "listed", RECORD="four.py,,\nfive/six.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    distributions = metadata.packages_distributions()
    assert {"one", "four", "five", "onnxruntime"} <= distributions.keys()
    assert "three" not in distributions
    for module in (*distributions, "three", "six"):
        names = [distribution.name for distribution in libraries.owners.__wrapped__(module)]
        assert names == sorted(set(distributions.get(module, []))), module


def test_the_first_of_two_installations_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("second", "first"):
        (tmp_path / folder).mkdir()
        install(tmp_path / folder, "twice", RECORD="twice.py,,\n")
        monkeypatch.syspath_prepend(tmp_path / folder)
    (owner,) = libraries.owners.__wrapped__("twice")
    assert Path(str(owner.locate_file("twice.py"))).parent == tmp_path / "first"


def test_an_empty_list_of_modules_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "blank", top_level_txt=" \n", RECORD="seven.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [distribution.name for distribution in libraries.owners.__wrapped__("seven")] == [
        "blank"
    ]


def test_a_distribution_without_a_name_owns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken", RECORD="eight.py,,\n")
    (tmp_path / "broken-1.0.dist-info/METADATA").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    assert libraries.owners.__wrapped__("eight") == ()


def test_whole_fallback_is_refused(openvino_python: Path, tmp_path: Path) -> None:
    """OpenVINO takes no node of this; ONNX Runtime would serve it from the CPU without a word."""
    model = broken.parse_text("(float[2, 3, 3] x) => (float[2] y) { [determinant] y = Det(x) }")
    place = Workplace(tmp_path, openvino_python, fresh=True)
    stage, outcome = place.prepare(place.task(place.put("model.onnx", model), backend="openvino"))
    assert (stage, outcome.report.reason) == ("convert", Reason.UNSUPPORTED_OPERATOR)
    assert (
        "OpenVINOExecutionProvider was assigned none of 1 nodes: determinant (Det)"
        in outcome.message
    )


@pytest.mark.parametrize(
    ("variant", "python", "opset", "cuda", "held"),
    [
        ("rtx", None, 26, "13", {"tensorrt-rtx": "1.7.1.116", "cpu": "1.31.1"}),
        ("openvino", "openvino_python", 25, None, {"openvino": "2025.4.1", "cpu": "1.24.1"}),
        # TensorRT's library is not there, so no engine could be built or run
        ("gpu", "gpu_python", 26, "13", {"cuda": "13", "cpu": "1.31.1"}),
    ],
)
def test_the_image_reports_its_contents(
    variant: str,
    python: str | None,
    opset: int,
    cuda: str | None,
    held: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    place = Workplace(tmp_path, request.getfixturevalue(python) if python else sys.executable)
    facts = place.probe()
    assert (facts.variant, facts.max_opset, facts.max_ir_version) == (variant, opset, 13)
    assert (facts.backends, facts.cuda_major) == (held, cuda)
    assert len(facts.to_json()) <= 1024


def test_words_without_source_lines() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/graph/model.cc:256"
        " onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&, const"
        " onnxruntime::ModelOptions&) Unsupported model IR version: 14, max supported IR version: 13\n"
    )
    assert plain(text) == "Unsupported model IR version: 14, max supported IR version: 13"
    assert status(text) == "FAIL"
    assert status("something else") is None
    assert len(plain("word " * 1000)) < 420


# Limits of the container


def cgroup(root: Path, files: dict[str, str], membership: str) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "self").write_text(membership)
    return root / "cgroup", root / "self"


@pytest.mark.parametrize(
    ("files", "membership", "limit"),
    [
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "400000 100000\n", "pod/box/cpu.max": "max 100000\n",
          "pod/cpu.max": "50000 100000\n"}, "0::/pod/box\n", 0.5),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"},
         "4:memory:/\n3:cpu,cpuacct:/kubepods/x\n", 2.0),
        ({"cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
         "3:cpu,cpuacct:/a\n", None),
        ({}, "", None),
    ],
)  # fmt: skip
def test_cpu_limits(
    files: dict[str, str], membership: str, limit: float | None, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").mkdir()
    assert limits.cpu_limit(*cgroup(tmp_path, files, membership)) == limit


def test_threads_are_whole_cpus_of_the_limit(tmp_path: Path) -> None:
    assert limits.threads(*cgroup(tmp_path, {"cpu.max": "50000 100000"}, "0::/\n")) == 1
    (tmp_path / "cgroup/cpu.max").write_text("max 100000")
    assert limits.threads(tmp_path / "cgroup", tmp_path / "self") >= 1
