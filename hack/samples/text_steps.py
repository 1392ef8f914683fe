"""A model with steps: film reviews as text in, a verdict out. Its files, manifest and a request.

python -m hack.samples.text_steps FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

TOKENIZER, MODEL, VERDICT = "mood-tokenizer.onnx", "mood.onnx", "mood-verdict.onnx"
MANIFEST: Final = f"""\
apiVersion: enginewright.dev/v1alpha1
kind: InferenceModel
metadata:
  name: mood
spec:
  source:
    uri: pvc://models/{MODEL}
  extensions:
    - type: ONNXRuntimeExtensions     # has BertTokenizer
  processing:
    before:
      - uri: pvc://models/{TOKENIZER}
    after:
      - uri: pvc://models/{VERDICT}
"""
REQUEST: Final = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A very good film!"]}]
}
WORDS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "very")
LABELS: Final = ("bad", "good")
_CONTRIB: Final = "ai.onnx.contrib"  # of onnxruntime-extensions
_OPSET, _IR_VERSION = 17, 8


def write_text_steps(folder: Path) -> None:
    """Write model, steps, manifest and request into a folder that exists."""
    onnx.save(tokenizer(), folder / TOKENIZER)
    onnx.save(mood(), folder / MODEL)
    onnx.save(verdict(), folder / VERDICT)
    (folder / "mood.yaml").write_text(MANIFEST)
    (folder / "mood-request.json").write_text(json.dumps(REQUEST))


def tokenizer() -> onnx.ModelProto:
    """Return text [1] -> input_ids [1, tokens]: BERT's tokens of a small vocabulary."""
    tokens = helper.make_node(
        "BertTokenizer",
        ["text"],
        ["ids", "types", "mask"],
        domain=_CONTRIB,
        vocab_file="\n".join(WORDS),
        do_lower_case=1,
    )
    return _model(
        [tokens, helper.make_node("Unsqueeze", ["ids", "axis"], ["input_ids"])],
        helper.make_tensor_value_info("text", TensorProto.STRING, [1]),
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"]),
        axis=np.array([0], np.int64),
    )


def mood() -> onnx.ModelProto:
    """Return input_ids [n, tokens] -> score [n]: the sum over the tokens, good 1, bad -1."""
    weights = np.zeros(len(WORDS), np.float32)
    weights[WORDS.index("good")], weights[WORDS.index("bad")] = 1, -1
    return _model(
        [
            helper.make_node("Gather", ["weights", "input_ids"], ["values"]),
            helper.make_node("ReduceSum", ["values", "axis"], ["score"], keepdims=0),
        ],
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "tokens"]),
        helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"]),
        weights=weights,
        axis=np.array([1], np.int64),
    )


def verdict() -> onnx.ModelProto:
    """Return score [n] -> verdict [n]: good, unless the score is negative."""
    return _model(
        [
            helper.make_node("GreaterOrEqual", ["score", "zero"], ["is_good"]),
            helper.make_node("Cast", ["is_good"], ["number"], to=TensorProto.INT64),
            helper.make_node("Gather", ["labels", "number"], ["verdict"]),
        ],
        helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("verdict", TensorProto.STRING, ["n"]),
        zero=np.float32(0),
        labels=np.array(LABELS, object),
    )


def _model(
    nodes: list[onnx.NodeProto],
    given: onnx.ValueInfoProto,
    returned: onnx.ValueInfoProto,
    **weights: np.float32 | NDArray[Any],
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in weights.items()]
    graph = helper.make_graph(nodes, "sample", [given], [returned], tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m hack.samples.text_steps FOLDER")
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_text_steps(target)
