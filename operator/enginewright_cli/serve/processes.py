"""What the forks of `serve` run: the containers of a serving pod, on ports and below a folder of this machine."""

from pathlib import Path

from enginewright_contract.task import ServeTask
from enginewright_runtime.core import logs
from enginewright_runtime.core.paths import Paths


def serve(task: str, root: str, least: int, port: int, grpc_port: int) -> int:
    """Run the server, which logs from level `least` on; return its exit code."""
    from enginewright_serving.server.main import run  # noqa: PLC0415 - the sidecar needs none

    logs.configure("serve", least)
    return run(
        ServeTask.model_validate_json(task),
        Paths.under(Path(root)),
        port=port,
        grpc_port=grpc_port,
    )


def watch(task: str, root: str, least: int, port: int, server_port: int) -> int:
    """Run the sidecar, likewise; return its exit code."""
    from enginewright_serving.sidecar.main import run  # noqa: PLC0415 - the server needs none

    logs.configure("sidecar", least)
    paths = Paths.under(Path(root))
    return run(ServeTask.model_validate_json(task), paths, port=port, server_port=server_port)
