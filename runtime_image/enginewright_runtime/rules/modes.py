"""Rules on nodes that were left as they were while the model was trained."""

from typing import Final

import numpy as np

from enginewright_runtime.rules.base import Hit, Subject, labels, named
from enginewright_runtime.rules.contents import UnreadableError, pieces
from enginewright_runtime.rules.view import RawNode

_DROPOUT_BY_INPUT: Final = 12  # opset since which Dropout has an input training_mode


def training_mode(subject: Subject) -> Hit | None:
    """Find Dropout and BatchNormalization that still train."""
    dropouts = [node for node in subject.view.nodes if _drops(subject, node)]
    norms = [
        node
        for node in subject.view.nodes
        if node.is_standard("BatchNormalization") and node.integer("training_mode")
    ]
    found = [*dropouts, *norms]
    if not found:
        return None
    what = [
        *(["Dropout sets values to zero by chance"] if dropouts else []),
        *(
            ["BatchNormalization takes its statistics from the request and keeps them"]
            if norms
            else []
        ),
    ]
    return Hit(f"{named(found)} still train: {', and '.join(what)}", labels(found))


def _drops(subject: Subject, node: RawNode) -> bool:
    if not node.is_standard("Dropout") or (node.opset or 0) < _DROPOUT_BY_INPUT:
        return False
    if not node.input(2):
        return False
    mode = subject.view.constant(node.scope, node.input(2))
    if mode is None:
        return False
    try:
        return any(bool(np.any(piece)) for piece in pieces(mode, subject.folder))
    except UnreadableError:
        return False
