"""What the operator asks a Job or a serving pod to do: one JSON document in one variable.

`PrepareTask` is transport; only its `recipe` decides how the artefact is made, so only the recipe
and the model digest enter the artefact's key.
"""

from typing import Final

from enginewright.contract.base import Message

TASK_VARIABLE: Final = "ENGINEWRIGHT_TASK"
WORK_PATH: Final = "/work"  # emptyDir shared by the stages of one pod
STORE_PATH: Final = "/store"  # the store's volume
CREDENTIALS_PATH: Final = "/credentials"  # spec.source.secretRef, one file a key
SAMPLES_CREDENTIALS_PATH: Final = "/samples-credentials"
SOURCE_PATH: Final = "/source"  # the claim of a pvc:// source, read-only
SAMPLES_PATH: Final = "/samples"  # the claim of pvc:// samples, read-only
ARTIFACT_PATH: Final = "/artifact"  # emptyDir of a serving pod
TERMINATION_LOG: Final = "/dev/termination-log"
HTTP_PORT: Final = 8080

PREPARE_STAGES: Final = ("fetch", "validate", "golden", "publish")


class ShapeProfile(Message):
    """Range of one dynamic input; the three lists have the input's rank."""

    input: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    low: float | None = None  # range of generated golden values
    high: float | None = None


class Recipe(Message):
    """Everything that decides how a prepared model is made."""

    backend: str  # the backend that is to serve
    ort_version: str  # of the image that prepares, which is the image that serves
    max_opset: int
    max_ir_version: int
    shapes: tuple[ShapeProfile, ...] = ()
    samples_uri: str | None = None
    rtol: float | None = None  # tolerance against the samples' expected outputs
    atol: float | None = None


class PrepareTask(Message):
    """Input of every stage of a prepare Job."""

    job: str  # name of the Job: reports go to reports/<job>/ in the store
    source_uri: str
    source_sha256: str | None = None
    recipe: Recipe


class ServeTask(Message):
    """Input of `fetch-artifact` and `serve`."""

    model: str  # name under /v2/models/
    revision: str
    prepared_key: str
    backend: str
    max_queue: int = 256  # requests waiting; one more is refused with 503
