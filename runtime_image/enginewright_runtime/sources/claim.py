"""Models on a volume of the cluster, mounted read-only: pvc://CLAIM/PATH."""

import logging
import shutil
from pathlib import Path
from typing import Final

from enginewright.contract.reasons import Reason
from enginewright.contract.report import name_nodes

from enginewright_runtime import digests
from enginewright_runtime.digests import Copied
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.logs import Progress
from enginewright_runtime.sources.base import no_room

_log: Final = logging.getLogger(__name__)


class ClaimSource:
    """A file of the volume, or a folder with one .onnx file.

    Symbolic links are followed as long as they end inside the volume: a Hugging Face cache is made
    of them. What is copied are plain files, since onnx and ONNX Runtime refuse linked weights.
    """

    def __init__(self, mount: Path, claim: str, path: str) -> None:
        self._mount = mount
        self._claim = claim
        self._path = path.strip("/")

    def copy_to(self, target: Path) -> Copied:
        """Copy the file, or the one .onnx file of the folder."""
        return self._copy(self._inside(self._file()), target)

    def copy_beside(self, location: str, target: Path) -> Copied:
        """Copy a file of the same folder."""
        path = self._inside(self._file().parent / location)
        if not path.is_file():
            raise StageFailure(
                Reason.EXTERNAL_DATA_MISSING,
                f"the model names the external data file {location!r}, which is not beside it in"
                f" claim {self._claim}",
            )
        return self._copy(path, target)

    def _file(self) -> Path:
        """Return the file as the address names it: external data lies beside that, not its target."""
        path = self._mount / self._path
        resolved = self._inside(path)
        if resolved.is_dir():
            return self._only_model(path)
        if not resolved.is_file():
            raise StageFailure(
                Reason.SOURCE_UNREACHABLE,
                f"claim {self._claim} has no file {self._path!r}{self._neighbours(resolved)}",
            )
        return path

    def _only_model(self, folder: Path) -> Path:
        models = sorted(folder.glob("*.onnx"))
        if len(models) == 1:
            return models[0]
        names = name_nodes([path.name for path in models]) or "none"
        raise StageFailure(
            Reason.SOURCE_UNREACHABLE,
            f"folder {self._path!r} of claim {self._claim} has {len(models)} .onnx files: {names}",
            remedy="name the file in spec.source.uri",
        )

    def _inside(self, path: Path) -> Path:
        mount = self._mount.resolve()
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError) as error:
            raise self._unreadable(path, error) from error
        if not resolved.is_relative_to(mount):
            raise StageFailure(
                Reason.SOURCE_UNREACHABLE,
                f"{str(path.relative_to(self._mount))!r} leads out of claim {self._claim}",
                remedy="write a path inside the volume, without .. and links that leave it",
            )
        return resolved

    def _neighbours(self, path: Path) -> str:
        """Say what there is instead: most often the path is written as another mount has it."""
        folder = next((parent for parent in path.parents if parent.is_dir()), None)
        if folder is None or not folder.is_relative_to(self._mount.resolve()):
            return ""
        try:
            names = sorted(entry.name for entry in folder.iterdir())
        except OSError:
            return ""
        where = "/" + str(folder.relative_to(self._mount.resolve())).removeprefix(".")
        return f"; {where} holds {name_nodes(names) or 'nothing'}"

    def _copy(self, path: Path, target: Path) -> Copied:
        try:
            size = path.stat().st_size
            free = shutil.disk_usage(target.parent).free
            if size > free:
                raise no_room(f"{path.name!r}", size, free)
            progress = Progress(_log, f"copying {path.name}", size)
            with path.open("rb") as reader, target.open("wb") as writer:
                return digests.copy(reader, writer, progress.add)
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: Path, error: Exception) -> StageFailure:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        return StageFailure(
            Reason.SOURCE_UNREACHABLE,
            f"cannot copy {path.name!r} from claim {self._claim}: {cause}",
            remedy="make the file readable for user 65532, and the work folder large enough",
        )
