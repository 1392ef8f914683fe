"""Huffman code of HPACK's strings (RFC 7541 5.2 and appendix B), decoded four bits at a time.

The code is canonical: codes of one length are consecutive, in the order of their symbols, and follow
those of the shorter length. So the symbols by length define it.
"""

from typing import Final

_SYMBOLS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: bytes.fromhex("c0c1c8c9cacdd2d5dadbeef0f2f3ff"),
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: b"\n\r\x16",
}
_STEPS: Final = 16  # values of four bits
_INVALID: Final = -1
_NO_SYMBOL: Final = -1
_LONGEST_PADDING: Final = 7  # bits


class HuffmanError(Exception):
    """The bytes are no Huffman code."""


def decode(data: bytes) -> bytes:
    """Decode a string.

    Raises:
        HuffmanError: it contains EOS, or its padding is not the up to seven high bits of EOS.
    """
    out = bytearray()
    state = 0
    for byte in data:
        for four in (byte >> 4, byte & 15):
            symbol = _EMITTED[state + four]
            state = _NEXT[state + four]
            if symbol != _NO_SYMBOL:
                out.append(symbol)
            elif state == _INVALID:
                raise HuffmanError
    if state not in _PADDINGS:
        raise HuffmanError
    return bytes(out)


class _Tree:
    """The code as a tree; a node has its next nodes by bit."""

    def __init__(self) -> None:
        self.nodes = [[_INVALID, _INVALID]]
        self.leaves: dict[tuple[int, int], int] = {}  # node and bit -> symbol
        code = previous = 0
        for length, symbols in _SYMBOLS.items():
            code <<= length - previous
            previous = length
            for symbol in symbols:
                self._add(code, length, symbol)
                code += 1

    def _add(self, code: int, length: int, symbol: int) -> None:
        node = 0
        for at in range(length - 1, 0, -1):
            bit = code >> at & 1
            if self.nodes[node][bit] == _INVALID:
                self.nodes[node][bit] = len(self.nodes)
                self.nodes.append([_INVALID, _INVALID])
            node = self.nodes[node][bit]
        self.leaves[node, code & 1] = symbol

    def step(self, node: int, four: int) -> tuple[int, int]:
        """Return the node after four bits, and the symbol among them; there is at most one."""
        emitted = _NO_SYMBOL
        for at in (3, 2, 1, 0):
            bit = four >> at & 1
            symbol = self.leaves.get((node, bit))
            if symbol is not None:
                node, emitted = 0, symbol
            else:
                node = self.nodes[node][bit]
                if node == _INVALID:
                    return _INVALID, _NO_SYMBOL
        return node, emitted


def _tables() -> tuple[list[int], list[int], frozenset[int]]:
    """Return for each state and four bits the next state, the symbol, and the states of paddings.

    A state is a node of the tree, as the index of its first step.
    """
    tree = _Tree()
    after, emitted = [], []
    for node in range(len(tree.nodes)):
        for four in range(_STEPS):
            state, symbol = tree.step(node, four)
            after.append(state * _STEPS if state != _INVALID else _INVALID)
            emitted.append(symbol)
    paddings = [0]
    for _ in range(_LONGEST_PADDING):
        paddings.append(tree.nodes[paddings[-1]][1])
    return after, emitted, frozenset(node * _STEPS for node in paddings)


_NEXT, _EMITTED, _PADDINGS = _tables()
