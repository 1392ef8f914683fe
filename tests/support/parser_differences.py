"""Graphs about which the parsers of TensorRT-RTX, TensorRT 10 and TensorRT 11 differ: rows of docs/builders.md, by their names."""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from onnx import ModelProto

from tests.support.broken_models import initializer, parse_text


def _scatter(reduction: str) -> ModelProto:
    return parse_text(
        f"""(float[4, 8] x, int64[4, 8] i, float[4, 8] u) => (float[4, 8] y) {{
        [n] y = ScatterElements <axis = 1, reduction = "{reduction}"> (x, i, u) }}""",
        opset=18,
    )


def _dft(width: int, rows: int, onesided: int) -> ModelProto:
    return parse_text(
        f"""(float[1, 8, {width}] x) => (float[1, {rows}, 2] y) {{
        [n] y = DFT <axis = 1, onesided = {onesided}> (x) }}"""
    )


def _make_nms() -> ModelProto:
    return parse_text(
        """(float[1, 8, 4] b, float[1, 8, 3] s)
        => (int32[1, 1] n, float[1, 5, 4] o, float[1, 5] c, int32[1, 5] k) {
        [n] n, o, c, k = EfficientNMS_TRT <max_output_boxes = 5, background_class = -1,
        score_threshold = 0.25, iou_threshold = 0.5, score_activation = 0, class_agnostic = 0,
        box_coding = 0, plugin_version = "1"> (b, s) }"""
    )


def _make_batched_nms() -> ModelProto:
    return parse_text(
        """(float[1, 8, 1, 4] b, float[1, 8, 3] s)
        => (int32[1, 1] n, float[1, 5, 4] o, float[1, 5] c, float[1, 5] k) {
        [n] n, o, c, k = BatchedNMSDynamic_TRT <shareLocation = 1, backgroundLabelId = -1,
        numClasses = 3, topK = 8, keepTopK = 5, scoreThreshold = 0.25, iouThreshold = 0.5,
        isNormalized = 1, clipBoxes = 1> (b, s) }"""
    )


def _rotary() -> ModelProto:
    return parse_text(
        """(float[1, 2, 4, 8] x, int64[1, 4] p) => (float[1, 2, 4, 8] y) {
        [n] y = com.microsoft.RotaryEmbedding(x, p, c, s) }""",
        initializer("c", np.ones((8, 4))),
        initializer("s", np.ones((8, 4))),
        domains=[("com.microsoft", 1)],
    )


def _deform() -> ModelProto:
    return parse_text(
        """(float[1, 1, 4, 4] x, float[1, 8, 3, 3] o) => (float[1, 1, 3, 3] y) {
        [n] y = DeformConv <kernel_shape = [2, 2]> (x, w, o) }""",
        initializer("w", np.ones((1, 1, 2, 2))),
        opset=19,
    )


def _sample_volume() -> ModelProto:
    return parse_text(
        """(float[1, 1, 4, 4, 4] x, float[1, 4, 4, 4, 3] g) => (float[1, 1, 4, 4, 4] y) {
        [n] y = GridSample <mode = "linear"> (x, g) }""",
        opset=20,
    )


GRAPHS: Final[dict[str, Callable[[], ModelProto]]] = {
    "ScatterElements that adds": partial(_scatter, "add"),
    "ScatterElements that takes the largest": partial(_scatter, "max"),
    "NonZero": partial(parse_text, '(float[4, 8] x) => (int64[2, "k"] y) { [n] y = NonZero(x) }'),
    "DeformConv": _deform,
    "GridSample of volumes": _sample_volume,
    "Swish": partial(
        parse_text, "(float[4, 8] x) => (float[4, 8] y) { [n] y = Swish(x) }", opset=24
    ),
    "DFT of real numbers, one-sided": partial(_dft, 1, 5, 1),
    "DFT of complex numbers": partial(_dft, 2, 8, 0),
    "EfficientNMS_TRT": _make_nms,
    "BatchedNMSDynamic_TRT": _make_batched_nms,
    "RotaryEmbedding of com.microsoft": _rotary,
}
