"""What preflight and the bare tools say of real models: bench/results/verdicts.json."""

from dataclasses import dataclass, field
from typing import Any, Final

CPU: Final = "cpu"
CHECKER: Final = "onnx.checker"
OPENVINO: Final = "OpenVINO"
BESIDE: Final = {
    CHECKER: "checker",
    OPENVINO: "openvino",
}  # tools without a target of their own: held against `cpu`


@dataclass(frozen=True)
class Verdict:
    """Preflight's verdict on one target."""

    verdict: str  # pass, warn or fail; "error" if there was none
    reasons: list[str]  # of the failure, or of what is warned about
    message: str = ""  # of the failure
    changes: list[str] = field(default_factory=list)  # kinds, of what is served

    @property
    def accepts(self) -> bool:
        """Return whether the model can be deployed."""
        return self.verdict in {"pass", "warn"}


@dataclass(frozen=True)
class Word:
    """What a bare tool says."""

    refusal: str | None  # why it refuses the model, if it does
    takes_prepared: bool | None = None  # the model that preflight prepared, if it was asked

    @property
    def takes(self) -> bool:
        """Return whether it takes the model."""
        return self.refusal is None


@dataclass(frozen=True)
class Model:
    """A model and all that was said of it."""

    name: str
    kind: str
    file: str
    opset: int | None
    nodes: int | None
    megabytes: float
    shapes: list[str]  # with which engines are asked for
    verdicts: dict[str, Verdict]  # preflight's, by column
    words: dict[str, Word]  # the tools', by column, and of those beside
    proposed: bool = True  # the shapes, by preflight


@dataclass(frozen=True)
class Column:
    """A target, and the tool that is asked the same question by hand."""

    name: str
    target: str
    tool: str  # in by_hand.TOOLS
    title: str  # of the tool, in tables
    major: str = ""  # of TensorRT, where its parser is asked


COLUMNS: Final = (
    Column("sm89", "sm89", "builder", "TensorRT-RTX"),
    Column("a100, 10", "a100", "parser", "TensorRT 10", "10"),
    Column("a100, 11", "a100", "parser", "TensorRT 11", "11"),
    Column(CPU, CPU, "session", "ONNX Runtime"),
)


@dataclass(frozen=True)
class Results:
    """The document."""

    about: dict[str, Any]  # date, versions
    models: list[Model]


def read_model(document: dict[str, Any]) -> Model:
    """Return a model of a parsed document."""
    return Model(
        **{
            **document,
            "verdicts": {name: Verdict(**item) for name, item in document["verdicts"].items()},
            "words": {name: Word(**item) for name, item in document["words"].items()},
        }
    )


def read(document: dict[str, Any]) -> Results:
    """Return the results of a parsed document."""
    return Results(document["about"], [read_model(item) for item in document["models"]])
