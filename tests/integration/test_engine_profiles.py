"""What an engine was built with is what the server takes: the rest is a 400 that says what is."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from enginewright_contract.manifest import MANIFEST_NAME, EngineInfo, Manifest
from enginewright_contract.task import ServeTask, ShapeProfile
from enginewright_runtime.core.request_errors import OutOfProfileError
from enginewright_runtime.engine import builder
from enginewright_runtime.session.signature import Signature, read_signature
from enginewright_serving.manifest import list_profiles
from enginewright_serving.server.protocol.decode import Decoder, Feeds
from enginewright_serving.transport.message import Body
from onnx import ModelProto

from tests.integration.test_tensorrt_builder import reshaping
from tests.support.engines import EnginePlace, build_request, matmul, sizes
from tests.support.serving import Server, json_inputs, write_artifact

WIDTH = 8


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The manifest of a real engine for which no shapes were declared."""
    place = EnginePlace(tmp_path_factory.mktemp("engine"), in_process=True)
    place.prepare_model(matmul())
    task = place.engine_task()
    place.build_engine(task)
    return place.engine_manifest(task)


def engine_of(manifest: Manifest) -> EngineInfo:
    assert manifest.engine is not None
    return manifest.engine


def largest(manifest: Manifest) -> int:
    """Return the largest batch that the engine was built for."""
    (profile,) = engine_of(manifest).profiles
    (x,) = profile.inputs
    return x.max[0]


def signature(model: ModelProto, profiles: tuple[tuple[ShapeProfile, ...], ...]) -> Signature:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return read_signature(session.get_inputs(), session.get_outputs(), profiles)


def make_request(**shapes: list[int]) -> dict[str, Any]:
    return json_inputs(**{name: np.ones(shape, np.float32) for name, shape in shapes.items()})


def decode(inputs_signature: Signature, document: dict[str, Any]) -> Feeds:
    text = json.dumps(document).encode()
    body = Body(len(text), 0)
    body.view()[:] = text
    return Decoder(inputs_signature).decode(body, None)[1]


def test_the_manifest_has_the_build_profiles(built: Manifest) -> None:
    assert built.recipe.shapes == (), "nothing was declared"
    (profile,) = engine_of(built).profiles
    (x,) = profile.inputs
    assert (x.input, x.min[1:], x.max[1:]) == ("x", (WIDTH,), (WIDTH,))
    assert 1 <= x.min[0] <= x.opt[0] <= x.max[0]
    assert (x.low, x.high) == (None, None)


def test_an_earlier_artefact_is_limited_by_declared_shapes(built: Manifest) -> None:
    document = json.loads(built.to_json())
    del document["engine"]["profiles"]
    earlier = Manifest.model_validate_json(json.dumps(document))
    assert list_profiles(earlier) == ((),)
    declared = sizes("x", [1, WIDTH], [2, WIDTH], [4, WIDTH])
    recipe = earlier.recipe.model_copy(update={"shapes": (declared,)})
    assert list_profiles(earlier.model_copy(update={"recipe": recipe})) == ((declared,),)


def test_without_an_engine_nothing_undeclared_is_limited(built: Manifest) -> None:
    prepared = built.model_copy(update={"engine": None})
    served_signature = signature(matmul(), list_profiles(prepared))
    assert decode(served_signature, make_request(x=[1000, WIDTH]))["x"].shape == (1000, WIDTH)


def test_one_of_several_profiles_takes_all_inputs() -> None:
    first = (sizes("a", [1, 4], [1, 4], [1, 4]), sizes("b", [1, 4], [1, 4], [1, 4]))
    second = (sizes("a", [2, 4], [2, 4], [8, 4]), sizes("b", [2, 4], [2, 4], [8, 4]))
    served_signature = read_signature(
        [_arg("a", [None, 4]), _arg("b", [None, 4])], [_arg("y", [None, 4])], (first, second)
    )
    for batch in (1, 2, 8):
        assert len(decode(served_signature, make_request(a=[batch, 4], b=[batch, 4]))) == 2
    with pytest.raises(OutOfProfileError, match=r"input 'a': shape \[9,4\] is outside"):
        decode(served_signature, make_request(a=[9, 4], b=[8, 4]))
    with pytest.raises(OutOfProfileError) as caught:
        decode(served_signature, make_request(a=[1, 4], b=[2, 4]))
    assert "'a' [1,4], 'b' [2,4] are outside the model's shape profiles" in caught.value.message
    assert "'a' [1,4], 'b' [1,4]; or 'a' [2 to 8,4], 'b' [2 to 8,4]" in caught.value.message


class _arg:  # noqa: N801 - a NodeArg in one line
    def __init__(self, name: str, shape: list[int | str | None]) -> None:
        self.name, self.type, self.shape = name, "tensor(float)", shape


# fault: Requests | a request of sizes, or values that are sizes, that the engine was not built
#   for
def test_values_that_are_sizes_are_limited_as_the_engine_is(tmp_path: Path) -> None:
    size = ShapeProfile(input="size", min=(2,), opt=(2,), max=(2,), low=1, high=8)
    x = ShapeProfile(input="x", min=(1, 8), opt=(8, 8), max=(8, 8), low=0, high=1)
    model = reshaping(by_input=True)
    (profile,) = builder.build(build_request(tmp_path, model, (x, size))).engine.profiles
    ranges = {input_.input: (input_.low, input_.high) for input_ in profile.inputs}
    assert ranges == {"x": (None, None), "size": (1.0, 8.0)}, "values of x are no sizes"
    served_signature = signature(model, (profile.inputs,))
    document = make_request(x=[2, 8])
    document["inputs"].append({"name": "size", "shape": [2], "datatype": "INT64", "data": [8, 2]})
    assert decode(served_signature, document)["size"].tolist() == [8, 2]
    document["inputs"][1]["data"] = [16, 1]
    with pytest.raises(OutOfProfileError, match="'size': its values are sizes, and 16 is outside"):
        decode(served_signature, document)


@pytest.fixture(scope="module")
def server(built: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server, with the profiles of a real engine, on the backend that runs here.

    The engine itself cannot run without a device: the model stands where its file would be.
    """
    root = tmp_path_factory.mktemp("served")
    task = write_artifact(root, matmul(), [{"x": np.ones((2, WIDTH), np.float32)}])
    path = root / "artifact" / MANIFEST_NAME
    manifest = Manifest.model_validate_json(path.read_bytes())
    content = (root / "artifact" / manifest.model).read_bytes()
    own = engine_of(built)
    engine = own.model_copy(
        update={
            "recipe": own.recipe.model_copy(
                update={"backend": "cpu", "backend_version": ort.__version__}
            ),
            "prepared_key": manifest.key,
            "file": manifest.model,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_bytes": len(content),
            "partitions": (),
        }
    )
    changed = manifest.model_copy(update={"engine": engine})
    path.write_text(changed.to_json())
    serve = ServeTask.model_validate(task.model_dump() | {"engine_key": manifest.key})
    with Server(root, serve) as running:
        yield running


# fault: Requests | a request of sizes, or values that are sizes, that the engine was not built
#   for | the server: 400, `enginewright_out_of_profile_total` | at once
def test_the_server_refuses_shapes_outside_the_engine(built: Manifest, server: Server) -> None:
    most = largest(built)
    assert server.post(make_request(x=[most, WIDTH])).status == 200
    answer = server.post(make_request(x=[most + 1, WIDTH]))
    assert answer.status == 400
    assert "input 'x'" in answer.json()["error"]
    assert f"dimension 0 is {most + 1}, allowed 1 to {most}" in answer.json()["error"]
    counted = 'enginewright_out_of_profile_total{model="m",revision="r1"} 1.0'
    assert counted in server.get("/metrics").body.decode()
