"""A model that does not fit into memory is refused for that, and not for its operators."""

from pathlib import Path

import pytest
from enginewright_contract.execution import Driver
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.session import loading
from enginewright_runtime.session.driver import NOT_NEEDED, Device
from enginewright_serving.server.startup import model_loading

from tests.support.manifests import manifest

# ONNX Runtime 1.31.1 on an H200 without free memory
ALLOCATION = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: Failed to allocate memory for requested buffer of size 9437184"
GPU = Device(Driver(needed=True, present=True), compute_capability="9.0", memory=150_754_820_096)
MANIFEST = manifest(key="ab" * 32, model="model/model.onnx")


@pytest.mark.parametrize(
    ("backend", "device", "where", "advice"),
    [
        ("cuda", GPU, "the memory of the device", "use a class whose devices have more memory"),
        ("cpu", NOT_NEEDED, "memory", "raise spec.podTemplate.resources.limits.memory"),
    ],
)
def test_memory_that_does_not_suffice_is_the_reason(
    backend: str,
    device: Device,
    where: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SessionError(ALLOCATION)

    monkeypatch.setattr(loading, "create", refuse)
    task = ServeTask(model="m", revision="r", prepared_key="ab" * 32, backend=backend)
    with pytest.raises(StageFailure) as caught:
        model_loading.load_session(
            task, tmp_path, MANIFEST, threads=1, device=device, runtime_cache=None
        )
    failure = caught.value
    assert failure.reason is Reason.OUT_OF_MEMORY
    assert failure.cause == (
        f"backend {backend} cannot load the model: {where} does not suffice: Exception during"
        " initialization: Failed to allocate memory for requested buffer of size 9437184"
    )
    assert advice in failure.message
