"""Whether the plug-in libraries of users load: each is tried in a process of its own first."""

from collections.abc import Sequence
from pathlib import Path

from enginewright_runtime.session.extensions.proving import alone
from enginewright_runtime.tensorrt.flavor import Flavor


def prove(flavor: Flavor, version: str, plugins: Sequence[Path], log: Path) -> None:
    """Load each library in a child.

    Raises:
        StageFailure: ExtensionFailed, or as `flavor.load`.
    """
    for path in plugins:
        alone(
            path,
            "enginewright_runtime.tensorrt.native:load_plugins",
            backend=flavor.backend,
            version=version,
            plugins=[str(path)],
            log=str(log),
        )
