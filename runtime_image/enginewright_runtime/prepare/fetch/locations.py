"""Finds the external data files of a model."""

from pathlib import Path
from typing import Final

from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.reasons import Reason
from enginewright_contract.report import name_nodes

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.model_files import LARGEST_PROTOBUF
from enginewright_runtime.graph.raw import graphs

_MAX_EXTERNAL_FILES: Final = 4096


def external_locations(path: Path) -> list[str]:
    """Return the model's external data files, sorted; none if `validate` will find it unparsable.

    Called in a child process, since a small untrusted file may need much memory when parsed.
    """
    if path.stat().st_size > LARGEST_PROTOBUF:
        return []
    try:
        proto = graphs.parse(path)
    except graphs.UnparsableError:
        return []
    outside: list[str] = []
    locations: set[str] = set()
    for tensor in graphs.walk_tensors(proto):
        entries = graphs.external_entries(tensor)
        if entries is None:
            continue
        location = entries.get("location", "")
        if graphs.is_inside(location) and location != MODEL_NAME:
            locations.add(location)
        else:
            outside.append(f"{tensor.name} ({location!r})")
    if outside:
        raise StageFailure(
            Reason.EXTERNAL_DATA_MISSING,
            f"external data of {name_nodes(outside)} is outside the model's folder",
        )
    if len(locations) > _MAX_EXTERNAL_FILES:
        raise StageFailure(
            Reason.INVALID_MODEL,
            f"the model has {len(locations)} external data files, more than {_MAX_EXTERNAL_FILES}",
            remedy="save all tensors to one file (onnx.save_model, all_tensors_to_one_file=True)",
        )
    return sorted(locations)
