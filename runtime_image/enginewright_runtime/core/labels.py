"""What nodes are called in placements, costs and partitions, so that all name them alike."""

import re
from typing import Final

CONTEXT_OP: Final = "EPContext"  # ONNX Runtime's node for an engine
_UNNAMED: Final = "unnamed"
_FUSED: Final = re.compile(r"(?P<name>.+)/\w+Fusion(?:_token_\d+)? \(\w+\)")  # ONNX Runtime's names


def reported_label(name: str, op_type: str) -> str:
    """Return "name (OpType)" from what runtimes report of a node; unnamed ones share one.

    They report no outputs, by which `graphs.label` calls a node without a name.
    """
    return f"{name or _UNNAMED} ({op_type})"


def fused_name(node_label: str) -> str | None:
    """Return the name of the node that ONNX Runtime has fused others into, or None.

    It calls a MatMul that took in an Add "NAME/MatMulAddFusion", and changes its type to Gemm.
    """
    # looked for in every label at every verdict, so the cheap test comes first
    found = _FUSED.fullmatch(node_label) if "Fusion" in node_label else None
    return found.group("name") if found else None
