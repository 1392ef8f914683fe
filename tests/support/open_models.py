"""Models with dynamic sizes that do not accept every size, like exporters' models of real networks."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.support.broken_models import parse_text

Array = NDArray[Any]
_RANDOM: Final = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return _RANDOM.normal(0, 0.1, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def model(graph: str, **weights: Array) -> ModelProto:
    """Return the model from the text of a graph and its weights; every node has a name."""
    made = parse_text(graph)
    for index, node in enumerate(made.graph.node):
        node.name = f"{node.op_type}-{index}"
    made.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    onnx.checker.check_model(made)
    return made


def voice_activity(*, symbols: bool = False) -> ModelProto:
    """Return a recurrent detector: its state's second dimension must equal the batch.

    Its convolution needs 200 values at least, and an If on the sampling rate of 16000 decides.
    """
    batch = ("batch", "batch") if symbols else ("rows", "state_rows")
    return model(
        f"""(float[{batch[0]}, time] x, float[2, {batch[1]}, 64] state, int64 sr)
            => (float[o, p] y, float[q, r, s] next) {{
        rate = Equal(sr, wide)
        x1 = Unsqueeze(x, one)
        c = If(rate) <then_branch = wide_band () => (float[a, b, c1] w) {{
                w = Conv<strides=[8]>(x1, w200) }},
            else_branch = narrow_band () => (float[a2, b2, c2] n) {{
                n = Conv<strides=[4]>(x1, w100) }}>
        r1 = Relu(c)
        means = ReduceMean<axes=[2], keepdims=0>(r1)
        sequence = Unsqueeze(means, zero)
        h0, c0 = Split<axis=0>(state)
        all, h1, c2 = LSTM<hidden_size=64>(sequence, wl, rl, , , h0, c0)
        last = Squeeze(h1, zero)
        y = MatMul(last, wo)
        next = Concat<axis=0>(h1, c2)
        }}""",
        w200=floats(64, 1, 200), w100=floats(64, 1, 100), wl=floats(1, 256, 64),
        rl=floats(1, 256, 64), wo=floats(64, 1), one=ints(1), zero=ints(0),
        wide=np.array(16000, np.int64),
    )  # fmt: skip


def sampling_rate() -> ModelProto:
    """Return a model that fails with every sampling rate but 16000 and 8000."""
    return model(
        """(float[batch, samples] x, int64 sr) => (float[o, p] y) {
        wide = Equal(sr, s16) narrow = Equal(sr, s8) known = Or(wide, narrow)
        count = Cast<to=7>(known) steps = Unsqueeze(count, zero) part = Slice(one, zero, steps, zero)
        shape = Concat<axis=0>(minus, part) flat = Reshape(x, shape) y = MatMul(flat, w)
        }""",
        s16=np.array(16000, np.int64), s8=np.array(8000, np.int64),
        zero=ints(0), one=ints(1), minus=ints(-1), w=floats(1, 4),
    )  # fmt: skip


def build_squeezed() -> ModelProto:
    """Return a model whose batch is declared dynamic but removed by a Squeeze."""
    return model(
        """(float[n, time, 40] x) => (float[o, p] y) {
        s = Squeeze(x, zero) y = MatMul(s, w) }""",
        w=floats(40, 8), zero=ints(0),
    )  # fmt: skip


def features() -> ModelProto:
    """Return a model whose features are open in name alone: a weight fixes them."""
    return model("(float[n, t, d] x) => (float[o, p, q] y) { y = MatMul(x, w) }", w=floats(77, 8))


def decoder(mask: str = "total") -> ModelProto:
    """Return a decoder with a key-value cache: the mask covers past and new positions."""
    made = model(
        """(int64[batch, seq] ids, int64[batch, total] mask,
                 float[batch, 4, past, 16] past_key, float[batch, 4, past, 16] past_value)
            => (float[o, p, q] logits, float[a, b, c, d] key, float[e, f, g, h] value_) {
        e1 = Gather(words, ids) q1 = MatMul(e1, wq) q4 = Reshape(q1, heads)
        new = Transpose<perm=[0, 2, 1, 3]>(q4)
        key = Concat<axis=2>(past_key, new) value_ = Concat<axis=2>(past_value, new)
        turned = Transpose<perm=[0, 1, 3, 2]>(key) scores = MatMul(new, turned)
        m1 = Cast<to=1>(mask) m4 = Unsqueeze(m1, axes) masked = Add(scores, m4)
        weights = Softmax(masked) mixed = MatMul(weights, value_)
        back = Transpose<perm=[0, 2, 1, 3]>(mixed) flat = Reshape(back, whole)
        logits = MatMul(flat, wo) }""",
        words=floats(100, 64), wq=floats(64, 64), heads=ints(0, -1, 4, 16), whole=ints(0, -1, 64),
        axes=ints(1, 2), wo=floats(64, 100),
    )  # fmt: skip
    made.graph.input[1].type.tensor_type.shape.dim[1].dim_param = mask
    return made


def nameless_decoder(layers: int = 6) -> ModelProto:
    """Return a decoder of several layers whose pasts have no names for their dimensions."""
    inputs, nodes = 'int64["batch", "seq"] ids', "[gather] x0 = Gather(words, ids)"
    for i in range(layers):
        key, value = f'"past_key_values.{i}.key"', f'"past_key_values.{i}.value"'
        inputs += f", float[?, 2, ?, 8] {key}, float[?, 2, ?, 8] {value}"
        nodes += f"""
            ["Reshape-r{i}"] r{i} = Reshape(x{i}, heads)
            ["Transpose-t{i}"] t{i} = Transpose <perm = [0, 2, 1, 3]> (r{i})
            ["Concat-k{i}"] k{i} = Concat <axis = 2> ({key}, t{i})
            ["Concat-v{i}"] v{i} = Concat <axis = 2> ({value}, t{i})
            ["Transpose-kt{i}"] kt{i} = Transpose <perm = [0, 1, 3, 2]> (k{i})
            ["MatMul-s{i}"] s{i} = MatMul(t{i}, kt{i}) ["Softmax-w{i}"] w{i} = Softmax(s{i})
            ["MatMul-m{i}"] m{i} = MatMul(w{i}, v{i})
            ["Transpose-b{i}"] b{i} = Transpose <perm = [0, 2, 1, 3]> (m{i})
            ["Reshape-f{i}"] f{i} = Reshape(b{i}, whole) x{i + 1} = Add(x{i}, f{i})"""
    weights = {"words": floats(50, 16), "heads": ints(0, -1, 2, 8), "whole": ints(0, -1, 16)}
    return parse_text(
        f"({inputs}) => (float[?, ?, 16] x{layers}) {{ {nodes} }}",
        *(numpy_helper.from_array(array, name) for name, array in weights.items()),
    )


def patches() -> ModelProto:
    """Return a vision transformer's beginning: embeddings of 14 by 14 patches of 16 pixels."""
    return model(
        """(float[n, 3, h, w] x) => (float[o, p] y) {
        c = Conv<strides=[16, 16]>(x, wc) r = Reshape(c, rows) t = Transpose<perm=[0, 2, 1]>(r)
        added = Add(t, places) means = ReduceMean<axes=[1], keepdims=0>(added) y = MatMul(means, wo)
        }""",
        wc=floats(32, 3, 16, 16), rows=ints(0, 32, -1), places=floats(1, 196, 32), wo=floats(32, 10),
    )  # fmt: skip


def build_flattened() -> ModelProto:
    """Return a classifier whose first full layer fixes the image to 28 by 28."""
    return model(
        """(float[n, 1, h, w] x) => (float[o, p] y) {
        c = Conv<pads=[1, 1, 1, 1]>(x, wc) f = Flatten(c) y = Gemm(f, wl) }""",
        wc=floats(4, 1, 3, 3), wl=floats(3136, 10),
    )  # fmt: skip


def skipping() -> ModelProto:
    """Return a network of one step down and up: its sides must be even, its channels three."""
    return model(
        """(float[n, c, h, w] x) => (float[o, p, q, r] y) {
        a = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(x, w1)
        b = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(a, w2)
        u = Resize<mode="nearest">(b, , scales) y = Concat<axis=1>(a, u) }""",
        w1=floats(8, 3, 3, 3), w2=floats(8, 8, 3, 3), scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip


def speech() -> ModelProto:
    """Return an audio front end that needs at least 5,040 samples, and the samples' lengths."""
    return model(
        """(float[batch, samples] wave, int64[batch] lengths) => (float[o, p] y) {
        x = Unsqueeze(wave, one) c = Conv<strides=[160]>(x, w1) d = Conv<strides=[4]>(c, w2)
        m = ReduceMean<axes=[2], keepdims=0>(d) l = Cast<to=1>(lengths) l2 = Unsqueeze(l, one)
        y = Add(m, l2) }""",
        w1=floats(16, 1, 400), w2=floats(16, 16, 30), one=ints(1),
    )  # fmt: skip


def lengths() -> ModelProto:
    """Return a model whose lengths have the audio's batch size, without a common dimension name."""
    made = model(
        """(float[n, samples] wave, int64[k] lengths) => (float[o, p] y) {
        x = Unsqueeze(wave, one) c = Conv<strides=[160]>(x, w) m = ReduceMean<axes=[2], keepdims=0>(c)
        l = Cast<to=1>(lengths) l2 = Unsqueeze(l, one) y = Concat<axis=1>(m, l2) }""",
        w=floats(16, 1, 400), one=ints(1),
    )  # fmt: skip
    for item in made.graph.input:
        for dimension in item.type.tensor_type.shape.dim:
            dimension.ClearField("dim_param")
    return made


def positions() -> ModelProto:
    """Return an encoder with embeddings of 100 positions and of two kinds of token."""
    return model(
        """(int64[b, s] input_ids, int64[b, s] attention_mask, int64[b, s] token_type_ids)
            => (float[o, p, q] y) {
        e = Gather(words, input_ids) t = Gather(kinds, token_type_ids) a = Add(e, t)
        shape = Shape(input_ids) length = Gather(shape, one) range = Range(nought, length, one)
        p1 = Gather(places, range) sum = Add(a, p1) m = Cast<to=1>(attention_mask)
        m3 = Unsqueeze(m, two) y = Mul(sum, m3) }""",
        words=floats(50, 16), kinds=floats(2, 16), places=floats(100, 16),
        one=np.array(1, np.int64), nought=np.array(0, np.int64), two=ints(2),
    )  # fmt: skip


def pair() -> ModelProto:
    """Return a model of two images that must have equal sizes, without common dimension names."""
    return model(
        """(float[n, 3, h, w] a, float[n2, 3, h2, w2] b) => (float[o, p, q, r] y) {
        d = Sub(a, b) y = Conv(d, w7) }""",
        w7=floats(4, 3, 7, 7),
    )  # fmt: skip


def frames() -> ModelProto:
    """Return a model that cuts audio into frames of 160 samples."""
    return model(
        "(float[n, samples] x) => (float[o, p, q] y) { y = Reshape(x, by) }",
        by=ints(0, -1, 160),
    )


def build_masked_audio() -> ModelProto:
    """Return a model whose mask is a quarter as long as its features."""
    return model(
        """(float[n, 80, t] mel, float[n, u] mask) => (float[o, p, q] y) {
        c = Conv<strides=[4]>(mel, w) m = Unsqueeze(mask, one) y = Mul(c, m) }""",
        w=floats(32, 80, 4), one=ints(1),
    )  # fmt: skip


def recurrent() -> ModelProto:
    """Return a GRU with the batch second, and a state whose batch has no name."""
    return model(
        """(float[steps, rows, 20] x, float[1, state_rows, 8] h)
            => (float[o, p, q, r] y, float[a, b, c] next) {
        y, next = GRU<hidden_size=8>(x, w, r, , , h) }""",
        w=floats(1, 24, 20), r=floats(1, 24, 8),
    )  # fmt: skip


def build_unranked() -> ModelProto:
    """Return a model whose input has an unknown rank."""
    made = model("(float[n, 64] x) => (float[o, p] y) { y = MatMul(x, w) }", w=floats(64, 8))
    made.graph.input[0].type.tensor_type.ClearField("shape")
    return made


OPEN: Final[dict[str, Callable[[], ModelProto]]] = {
    "voice_activity": voice_activity,
    "voice_activity_with_symbols": lambda: voice_activity(symbols=True),
    "sampling_rate": sampling_rate,
    "squeezed": build_squeezed,
    "features": features,
    "decoder": decoder,
    "decoder_with_sum": lambda: decoder("past + seq"),
    "nameless_decoder": nameless_decoder,
    "patches": patches,
    "flattened": build_flattened,
    "skipping": skipping,
    "speech": speech,
    "lengths": lengths,
    "positions": positions,
    "pair": pair,
    "frames": frames,
    "masked_audio": build_masked_audio,
    "recurrent": recurrent,
    "unranked": build_unranked,
}
