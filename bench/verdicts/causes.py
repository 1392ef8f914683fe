"""Why preflight and a bare tool disagree about a model, and which of them is right: written by hand, held to the results."""

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Cause:
    """The cause of disagreements about some models."""

    columns: tuple[str, ...]  # of the tools, in `results.COLUMNS`, or the checker
    models: tuple[str, ...]
    accepted: bool  # by preflight
    right: Literal["preflight", "tool"]
    text: str

    def explains(self, model: str, column: str, accepted: bool) -> bool:
        """Return whether this is the cause of a disagreement."""
        return column in self.columns and model in self.models and accepted is self.accepted


CAUSES: Final = (
    Cause(
        columns=("sm89",),
        models=("silero-half", "silero-op15"),
        accepted=True,
        right="preflight",
        text="TensorRT-RTX compiles both branches of an If, and their ranks differ; conversion takes the branch that"
        " the sizes decide",
    ),
    Cause(
        columns=("a100, 10",),
        models=("melspectrogram",),
        accepted=True,
        right="preflight",
        text="TensorRT 10 refuses a Clip with an infinite bound; conversion replaces it by the operators that define it",
    ),
    Cause(
        columns=("sm89",),
        models=("swift-f0",),
        accepted=False,
        right="preflight",
        text="the engine has an output of FP64, and ONNX Runtime's provider of TensorRT-RTX loads none with it",
    ),
    Cause(
        columns=("OpenVINO",),
        models=("silero", "silero-half", "silero-op15"),
        accepted=True,
        right="preflight",
        text="OpenVINO compiles both branches of an If, and their ranks differ; `cpu` is ONNX Runtime, which runs one",
    ),
    Cause(
        columns=("OpenVINO",),
        models=("logreg-iris", "gradient-boosting", "ddddocr-old", "rawi", "bilstm"),
        accepted=True,
        right="preflight",
        text="OpenVINO lacks operators of ai.onnx.ml and com.microsoft; `cpu` is ONNX Runtime, which has them",
    ),
    Cause(
        columns=("OpenVINO",),
        models=("iclabel",),
        accepted=True,
        right="preflight",
        text="OpenVINO runs no Squeeze whose rank depends on the batch; `cpu` is ONNX Runtime, which does",
    ),
)
