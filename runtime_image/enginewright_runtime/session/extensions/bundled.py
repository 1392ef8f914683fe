"""The library of onnxruntime-extensions, which a model declares with a file, without an import of the package."""

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure

MARK: Final = "onnxruntime-extensions"  # the package, and the file that declares it
IN_FIRST_RELEASE: Final = "0.15.2"  # whose keys have no version of it
_PACKAGE: Final = "onnxruntime_extensions"
_LIBRARY: Final = "_extensions_pydll"


def library() -> Path:
    """Return the library's path; raises StageFailure, ExtensionFailed, if the image lacks the package."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    paths = [path for folder in folders or () for path in Path(folder).glob(f"{_LIBRARY}*.so")]
    if len(paths) != 1:
        raise StageFailure(
            Reason.EXTENSION_FAILED,
            f"this runtime image has no {MARK}",
            remedy="use a runtime image of this release, or remove the entry of spec.extensions",
        )
    return paths[0]


def version() -> str:
    """Return the version of the package, which must be installed."""
    return metadata.version(MARK)


def owns(path: Path) -> bool:
    """Return whether a path is that of the library."""
    return path.name.startswith(_LIBRARY)


def declare(folder: Path) -> dict[str, Any]:
    """Declare the library in a model's folder of libraries; return facts for the report; raises as `library`."""
    library()
    (folder / MARK).write_text(f"{version()}\n")
    return {"source": "runtime image", "pin": f"{MARK} {version()}"}
