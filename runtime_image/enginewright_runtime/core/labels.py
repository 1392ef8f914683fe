"""The labels of nodes in placements, costs and partitions."""

import re
from typing import Final

CONTEXT_OP: Final = "EPContext"  # ONNX Runtime's node for an engine
_UNNAMED: Final = "unnamed"
_FUSED: Final = re.compile(r"(?P<name>.+)/\w+Fusion(?:_token_\d+)? \(\w+\)")  # ONNX Runtime's names


def format_label(name: str, op_type: str) -> str:
    """Return "name (OpType)" as runtimes report a node; all unnamed nodes of a type share one label."""
    return f"{name or _UNNAMED} ({op_type})"


def strip_fusion(node_label: str) -> str | None:
    """Return the original name of a node that ONNX Runtime named NAME/MatMulAddFusion or the like, or None."""
    # called for every label at every verdict, so the cheap test comes first
    match = _FUSED.fullmatch(node_label) if "Fusion" in node_label else None
    return match.group("name") if match else None
