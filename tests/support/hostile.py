"""Files that attack their readers."""

import pickle
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Final

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from tests.support.broken_models import FLOAT, build, value

ESCAPES: Final = "\x1b[31mFoo\x1b]0;owned\x07\r\nlevel=error msg=forged\x9b2J"


def nest_bodies(depth: int) -> bytes:
    """Return If inside If, `depth` of them, over one Relu.

    Put together from bytes, since Python's protobuf refuses to build what it refuses to read.
    """
    condition = value("c", kind=TensorProto.BOOL)
    inner = helper.make_node("Relu", ["x"], ["o0"]).SerializeToString()
    for level in range(depth):
        output = f"o{level + 1}" if level < depth - 1 else "y"
        other = helper.make_node("Relu", ["x"], [f"e{level}"]).SerializeToString()
        node = helper.make_node("If", ["c"], [output]).SerializeToString()
        node += _branch("then_branch", inner, f"o{level}")
        node += _branch("else_branch", other, f"e{level}")
        inner = node
    model = build([], [value("x", 1, 4), condition], [value("y", 1, 4)])
    graph = model.graph.SerializeToString() + _field(1, inner)
    model.ClearField("graph")
    return bytes(model.SerializeToString()) + _field(7, graph)


def _branch(name: str, node: bytes, output: str) -> bytes:
    """Return an attribute of a NodeProto that holds a graph of one node."""
    graph = _field(1, node) + _field(2, b"body")
    graph += _field(12, value(output, 1, 4).SerializeToString())
    # fields of AttributeProto: name, g, and type, which is GRAPH
    return _field(5, _field(1, name.encode()) + _field(6, graph) + b"\xa0\x01\x05")


def _field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf that holds bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def many_nodes(count: int) -> bytes:
    """Return a chain of `count` nodes, put together from bytes, which is quick."""
    names = [b"x", *(b"v%d" % index for index in range(1, count)), b"y"]
    relu = _field(4, b"Relu")
    nodes = [
        _field(1, _field(1, before) + _field(2, after) + relu) for before, after in pairwise(names)
    ]
    model = build([], [value("x", 1, 4)], [value("y", 1, 4)])
    graph = bytes(model.graph.SerializeToString()) + b"".join(nodes)
    model.ClearField("graph")
    return bytes(model.SerializeToString()) + _field(7, graph)


def two_byte_nodes(count: int) -> bytes:
    """Return a model of nodes with two bytes in the file and hundreds in memory."""
    head = ModelProto(ir_version=9)
    head.opset_import.append(helper.make_opsetid("", 17))
    return bytes(head.SerializeToString()) + _field(7, _field(1, b"") * count)


def two_byte_attributes(count: int) -> bytes:
    """Return a model with one node whose attributes have two bytes each."""
    head = ModelProto(ir_version=9)
    head.opset_import.append(helper.make_opsetid("", 17))
    return bytes(head.SerializeToString()) + _field(7, _field(1, _field(5, b"") * count))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def long_names(length: int) -> ModelProto:
    """Return a good model whose node, operator-free value and description are `length` long."""
    name = "n" * length
    nodes = [
        helper.make_node("Relu", ["x"], [name], name=name),
        helper.make_node("Relu", [name], ["y"], name="short"),
    ]
    return build(nodes, [value("x", 1, 4)], [value("y", 1, 4)])


def long_operator(length: int) -> ModelProto:
    """Return a model with an operator that there is not, of a long name."""
    node = helper.make_node("Z" * length, ["x"], ["y"], name="n" * length)
    return build([node], [value("x", 1, 4)], [value("y", 1, 4)])


def functions(calls: dict[str, list[str]], entry: str = "F0") -> ModelProto:
    """Return a model of functions that call functions, or operators, one after the other."""
    model = build(
        [helper.make_node(entry, ["x"], ["y"], domain="local", name="call")],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
        domains=[("local", 1)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for name, called in calls.items():
        values = ["a", *(f"t{index}" for index in range(1, len(called))), "b"]
        nodes = [
            helper.make_node(op, [before], [after], domain="local" if op in calls else "")
            for op, before, after in zip(called, values, values[1:], strict=False)
        ]
        model.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, imports))
    return model


def exploding_functions(depth: int) -> ModelProto:
    """Return functions that each call the next one twice: 2 ** depth nodes when unfolded."""
    calls = {f"F{index}": [f"F{index + 1}"] * 2 for index in range(depth)}
    return functions({**calls, f"F{depth}": ["Relu"]})


def escapes_in_operator(domain: str = "my.ops") -> ModelProto:
    """Return a custom operator with terminal escapes and line ends in its name."""
    node = helper.make_node(ESCAPES, ["x"], ["y"], name=f"node {ESCAPES}", domain=domain)
    domains = [(domain, 1)] if domain else []
    return build([node], [value("x", 1, 4)], [value("y", 1, 4)], domains=domains)


def escapes_in_input() -> ModelProto:
    """Return a good model whose input's name has them."""
    node = helper.make_node("Relu", [ESCAPES], ["y"], name="relu")
    return build([node], [value(ESCAPES, 1, 4)], [value("y", 1, 4)])


def huge_tensor(*dims: int) -> ModelProto:
    """Return a model with an initializer of four bytes that declares `dims`."""
    weight = TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=bytes(4))
    node = helper.make_node("Add", ["x", "w"], ["y"], name="sum")
    return build([node], [value("x", 1, 4)], [value("y", None, None)], [weight])


def huge_input(*dims: int) -> ModelProto:
    """Return a valid model with an input that no client can send."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    return build([node], [value("x", *dims)], [value("y", *dims)])


def build_untyped_input() -> ModelProto:
    """Return a model whose input has no type."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    return build([node], [ValueInfoProto(name="x")], [value("y", 1, 4)])


def a_pickle() -> bytes:
    """Return torch.save's output in the old format, without zip."""
    return pickle.dumps({"state_dict": [1.0] * 64})


def sparse_file(path: Path, size: int, start: bytes = b"") -> None:
    with path.open("wb") as writer:
        writer.write(start)
        writer.truncate(size)


def empty_blocks(count: int) -> bytes:
    """Return blocks of deflate, a multiple of 8, with Huffman codes of their own, and no data.

    Each takes 11 bytes, and microseconds (RFC 1951 3.2.7).
    """
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)  # of lengths of codes
    fields = [(0, 1), (2, 2)]  # not the last block; dynamic codes
    fields += [(0, 5), (0, 5), (len(order) - 4, 4)]  # 257 codes of data, 1 of distances
    fields += [({18: 1, 0: 2, 1: 2}.get(number, 0), 3) for number in order]
    zeros = (0, 1)  # symbol 18: 11 zeros and as many as the next 7 bits say
    fields += [zeros, (127, 7), zeros, (256 - 138 - 11, 7), (3, 2), (1, 2)]  # then a 1 and a 0
    fields += [(0, 1)]  # the only code: the end of the block
    value = at = 0
    for _ in range(8):  # together they end on a byte's boundary
        for bits, size in fields:
            value |= bits << at
            at += size
    return value.to_bytes(at // 8, "little") * (count // 8)


def costly_deflate(data: bytes, blocks: int) -> bytes:
    """Return `data` in zlib's format, after so many empty blocks."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    rest = stream.compress(data) + stream.flush()
    return b"\x78\x9c" + empty_blocks(blocks) + rest + struct.pack(">I", zlib.adler32(data))
