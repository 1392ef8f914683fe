"""Models to serve, each with one request and its right answer.

Run as a program, it writes them to a folder: the benchmark itself must not load ONNX Runtime, whose
libraries it would otherwise share with the servers whose memory it measures.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BATCH: Final = 8  # of the second measurement of bare `session.run`


@dataclass(frozen=True)
class Case:
    """A model with one input and one output, as written to a folder."""

    name: str
    title: str
    input: str
    output: str
    datatype: str  # of the input, in the Open Inference Protocol's terms
    folder: Path
    x: NDArray[Any]
    y: NDArray[np.float32]

    @property
    def root(self) -> Path:
        """Root folder of our server's pod."""
        return self.folder / "served"

    @property
    def model(self) -> Path:
        """The ONNX file, which every server reads."""
        return self.root / "artifact/model.onnx"

    @property
    def task(self) -> dict[str, Any]:
        """The task of our server."""
        task: dict[str, Any] = json.loads((self.folder / "task.json").read_text())
        return task


def read(folder: Path) -> Case:
    """Read what `write` has written."""
    about = json.loads((folder / "case.json").read_text())
    return Case(**about, folder=folder, x=np.load(folder / "x.npy"), y=np.load(folder / "y.npy"))


def write(folder: Path, name: str) -> None:
    """Write model, request and right answer, and the artefact that our server reads."""
    import onnxruntime as ort  # noqa: PLC0415 - see above

    from bench.serving import models  # noqa: PLC0415 - likewise
    from tests.support.serving import write_artifact  # noqa: PLC0415 - likewise

    title, model, x = models.MODELS[name]()
    folder.mkdir(parents=True)
    session = ort.InferenceSession(
        str(model) if isinstance(model, Path) else model.SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    (source,), (result,) = session.get_inputs(), session.get_outputs()
    options = models.OPTIONS.get(name, {})
    task = write_artifact(folder / "served", model, [{source.name: x}], **options)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", session.run(None, {source.name: x})[0])
    about = {
        "name": name,
        "title": title,
        "input": source.name,
        "output": result.name,
        "datatype": {"float32": "FP32", "int32": "INT32"}[x.dtype.name],
    }
    (folder / "case.json").write_text(json.dumps(about))
    (folder / "task.json").write_text(task.to_json())


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
