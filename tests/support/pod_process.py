"""The containers of a serving pod: server and sidecar, as processes with the settings of tests."""

import json
import sys
from pathlib import Path
from typing import Any

from enginewright_contract.task import ServeTask
from enginewright_runtime.core import logs
from enginewright_runtime.core.paths import Paths


def serve(arguments: dict[str, Any]) -> int:
    """Run the server, after the Python code of `before`; return the exit code."""
    exec(arguments["before"], {})  # noqa: S102 - the tests' own code
    from enginewright_serving.server.main import run  # noqa: PLC0415 - may be changed by then
    from enginewright_serving.server.settings import ServerSettings  # noqa: PLC0415 - likewise

    logs.configure("serve")
    settings = ServerSettings(**arguments["settings"])
    ports = {"port": arguments["port"], "grpc_port": arguments["grpc_port"]}
    return run(*_place(arguments), **ports, settings=settings)


def watch(arguments: dict[str, Any]) -> int:
    """Run the sidecar; return the exit code."""
    from enginewright_serving.sidecar.main import run  # noqa: PLC0415 - servers need none
    from enginewright_serving.sidecar.settings import SidecarSettings  # noqa: PLC0415 - likewise

    logs.configure("sidecar")
    return run(
        *_place(arguments),
        port=arguments["port"],
        server_port=arguments["server_port"],
        settings=SidecarSettings(**arguments["settings"]),
    )


def _place(arguments: dict[str, Any]) -> tuple[ServeTask, Paths]:
    return ServeTask.model_validate(arguments["task"]), Paths.under(Path(arguments["root"]))


if __name__ == "__main__":
    sys.exit({"serve": serve, "watch": watch}[sys.argv[1]](json.loads(sys.argv[2])))
