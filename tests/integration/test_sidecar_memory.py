"""Golden samples of many megabytes, within the memory that the sidecar's container is given for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright.manifests.serving_pod import sidecar_memory
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check
from enginewright_runtime.session.arrays import map_arrays, read_arrays, write_arrays

from tests.support.broken_models import initializer, parse_text
from tests.support.ports import free_port
from tests.support.serving import Server
from tests.support.sidecar import Sidecar, artifact

MB = 1_000_000
MIB = 1 << 20


def large_output(root: Path, size: int) -> tuple[ServeTask, int]:
    """Return the task to serve y [size / 4] = x + 1 spread out, and the bytes of its output."""
    count = size // 4
    spread = parse_text(
        f"(float[1] x) => (float[{count}] y) {{ wide = Expand(x, shape) y = Add(wide, one) }}",
        initializer("shape", np.array([count]), None),
        initializer("one", np.ones(1, np.float32)),
    )
    return artifact(root, spread, [{"x": np.array([2], np.float32)}]), 4 * count


def differ(root: Path) -> None:
    """Have the golden output differ everywhere, within the tolerance: the dearest comparison."""
    path = root / "artifact/golden/outputs.npz"
    arrays = read_arrays(path)
    write_arrays(path, {"s0": {"y": arrays["s0"]["y"] * np.float32(1.0001)}})


# fault: Devices | golden samples exceed the sidecar's memory (84 and 176 MB of outputs, 157 MB of
#   inputs) | a limit from the manifest; arrays stay in their file | prevented
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [84 * MB, 176 * MB])
def test_a_large_output_is_proven_within_the_limit(tmp_path: Path, size: int) -> None:
    task, size = large_output(tmp_path, size)
    differ(tmp_path)
    port = free_port()
    with Sidecar(tmp_path, task, port, fresh=True) as sidecar:
        sidecar.bound_memory(sidecar_memory(size))
        with Server(tmp_path, task, port=port):
            sidecar.until_state(Check.GOLDEN, "ok", 90)
            sidecar.until_ready()


# fault: Devices | golden samples exceed the sidecar's memory (84 and 176 MB of outputs, 157 MB of
#   inputs)
@pytest.mark.timeout(300)
def test_a_large_input_takes_no_memory_at_all(tmp_path: Path) -> None:
    """Of a detector at batch 32, 640 by 640: 157 MB, sent from the file."""
    total = parse_text(
        "(float[32, 3, 640, 640] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }"
    )
    image = np.zeros((32, 3, 640, 640), np.float32)
    image[-1, -1, -1, -1] = 7
    task = artifact(tmp_path, total, [{"x": image}])
    port = free_port()
    with Sidecar(tmp_path, task, port, fresh=True) as sidecar:
        sidecar.bound_memory(128 * MIB)
        with Server(tmp_path, task, port=port, body_bytes=256 * MIB, inflight_bytes=512 * MIB):
            sidecar.until_state(Check.GOLDEN, "ok", 90)


def test_arrays_are_found_in_their_file_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    given = {
        "s0": {
            "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
            "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "none": np.empty((0, 4), np.int64),
            "one": np.array(5, np.uint8),
            "words": np.array(["grüß", ""], dtype=object),
            "half": np.array([1, 2], np.float16),
        }
    }
    write_arrays(path, given)
    read, mapped = read_arrays(path)["s0"], map_arrays(path)
    assert {f"s0/{name}" for name in read} == mapped.keys()
    for name, array in read.items():
        actual = mapped[f"s0/{name}"]
        assert (actual.dtype, actual.shape) == (array.dtype, array.shape)
        assert np.array_equal(actual, array)
    assert isinstance(mapped["s0/plain"], np.memmap)
    compressed: dict[str, Any] = {"s0/x": np.ones(4)}
    np.savez_compressed(path, **compressed)
    assert np.array_equal(map_arrays(path)["s0/x"], np.ones(4))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        map_arrays(path)


@pytest.mark.parametrize(
    ("size", "limit"),
    [(None, 256), (0, 256), (60 * MB, 256), (84 * MB, 320), (176 * MB, 512), (580 * MB, 1280)],
)
def test_the_limit_follows_from_the_largest_output(size: int | None, limit: int) -> None:
    assert sidecar_memory(size) == limit * MIB
