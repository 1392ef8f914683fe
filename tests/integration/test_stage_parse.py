"""Stage `parse` of preflight: what a parser takes, what it refuses, and what the target lacks; by TensorRT-RTX's."""

from pathlib import Path

import pytest
from enginewright_contract.facts import ParseFacts
from enginewright_contract.reasons import Reason

from tests.support import broken_models as broken
from tests.support import modelopt_models
from tests.support.engines import EnginePlace, build_mixed, matmul, recipe
from tests.support.preflight_runs import Desk

VERSION = "10.15.1.29"


@pytest.fixture
def place(tmp_path: Path) -> EnginePlace:
    return EnginePlace(tmp_path, in_process=True)


def test_a_model_that_the_parser_takes_names_the_library(place: EnginePlace) -> None:
    place.prepare_model(matmul())
    outcome = place.engine_stage("parse", place.engine_task())
    assert outcome.code == 0, outcome.message
    assert outcome.report.message == "TensorRT-RTX 1.7.1.116 parses all 2 compute nodes"
    facts = ParseFacts.model_validate(outcome.full["facts"])
    assert facts == ParseFacts(library="TensorRT-RTX 1.7.1.116", nodes_total=2)
    assert not (place.root / "store/engines").exists()


def test_a_node_that_the_parser_refuses_is_named(place: EnginePlace) -> None:
    place.prepare_model(build_mixed())
    outcome = place.engine_stage("parse", place.engine_task())
    assert outcome.report.reason is Reason.UNSUPPORTED_OPERATOR
    assert "TensorRT-RTX 1.7.1.116 has no implementation of det_bad (Det)" in outcome.message


def test_element_types_that_the_target_lacks_are_refused(place: EnginePlace) -> None:
    task = place.task(place.put("m.onnx", modelopt_models.fp8()), backend="tensorrt-rtx")
    place.prepared = place.complete(task).published.key
    refused = place.engine_stage("parse", place.engine_task(recipe("8.6")))
    assert refused.report.reason is Reason.PRECISION_UNSUPPORTED
    assert "tensors are FP8, which needs compute capability 8.9 or higher" in refused.message
    taken = place.engine_stage("parse", place.engine_task(recipe("8.9")))
    assert taken.code == 0, taken.message


def test_a_device_that_nothing_serves_is_refused_before_parsing(place: EnginePlace) -> None:
    place.prepare_model(matmul())
    outcome = place.engine_stage(
        "parse", place.engine_task(recipe("6.1", backend="tensorrt", version=VERSION))
    )
    assert outcome.report.reason is Reason.ENGINE_INCOMPATIBLE
    assert "TensorRT does not build for compute capability 6.1" in outcome.message


# fault: Commands | ENGINEWRIGHT_TENSORRT names a folder without TensorRT's libraries | stage `parse` names folder and
#   file | at once
def test_a_folder_without_the_libraries_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    place = EnginePlace(tmp_path, environment={"ENGINEWRIGHT_TENSORRT": str(empty)})
    place.prepare_model(matmul())
    how = recipe("8.0", backend="tensorrt", version=VERSION)
    outcome = place.engine_stage("parse", place.engine_task(how))
    assert outcome.report.reason is Reason.PROVIDER_MISSING
    assert f"names {empty}, which has no TensorRT {VERSION}: " in outcome.message
    assert "libnvinfer.so.10" in outcome.message


# fault: Commands | a target of TensorRT, whose libraries are not installed | preflight says how to get them | at once
@pytest.mark.parametrize("target", ["a100", "sm80"])
def test_preflight_says_how_to_get_the_libraries(target: str, desk: Desk) -> None:
    done = desk.run(desk.save(broken.relu()), "--target", target)
    assert done.returncode == 2
    assert (
        f"target {target} needs the libraries of TensorRT, which are not installed" in done.stderr
    )
    assert 'export ENGINEWRIGHT_TENSORRT="$(hack/tensorrt-libraries)"' in done.stderr
