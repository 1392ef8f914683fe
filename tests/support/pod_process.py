"""The containers of a serving pod: server and sidecar, as processes with the limits and times of tests."""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core import logs
from enginewright_runtime.core.paths import Paths

# constants by what tests call them; what else a server gets is of its `TransportSettings`
SERVER: Final = {
    "device_lost_seconds": "server.observe.health:_DEVICE_LOST_SECONDS",
    "drain_linger": "server.endpoints:_LINGER_SECONDS",
    "drain_seconds": "server.endpoints:_DRAIN_SECONDS",
    "loop_pause_seconds": "server.inference.turns:_PAUSE_SECONDS",
    "loop_run_seconds": "server.startup.batch_proof:_TURN_SECONDS",
    "retest_seconds": "server.observe.health:_RETEST_SECONDS",
    "run_seconds": "server.api.serving:_LONG_SECONDS",
    "runs_fail_seconds": "server.observe.health:_RUNS_FAIL_SECONDS",
    "step_seconds": "server.inference.processing.runs:_SECONDS",
    "stuck_seconds": "server.api.serving:_STUCK_SECONDS",
}
SIDECAR: Final = {
    "baseline_probes": "sidecar.trend:BASELINE_PROBES",
    "idle_seconds": "sidecar.probe_schedule:_IDLE_SECONDS",
    "intervals": "sidecar.settings:INTERVALS",
    "measurements_age": "sidecar.app:_MEASUREMENTS_AGE",
    "memory_interval": "sidecar.monitor:_MEMORY_INTERVAL",
    "probe_share": "sidecar.probe_schedule:_PROBE_SHARE",
    "release_interval": "sidecar.settings:RELEASE_INTERVAL",
    "shadow_interval": "sidecar.shadow:_INTERVAL",
    "shadow_port": "sidecar.shadow:_PORT",
    "shadow_seconds": "sidecar.shadow:_ANSWER_SECONDS",
    "slowest_interval": "sidecar.settings:SLOWEST_INTERVAL",
    "window_seconds": "sidecar.trend:WINDOW_SECONDS",
}


def serve(arguments: dict[str, Any]) -> int:
    """Run the server, after the Python code of `before`; return the exit code."""
    exec(arguments["before"], {})  # noqa: S102 - the tests' own code
    from enginewright_serving.server.main import run  # noqa: PLC0415 - may be changed by then
    from enginewright_serving.transport.settings import TransportSettings  # noqa: PLC0415 - likewise

    logs.configure("serve")
    given = arguments["settings"]
    _set({SERVER[name]: value for name, value in given.items() if name in SERVER})
    settings = TransportSettings(**{key: given[key] for key in given.keys() - SERVER.keys()})
    ports = {"port": arguments["port"], "grpc_port": arguments["grpc_port"]}
    return run(*_place(arguments), **ports, settings=settings)


def watch(arguments: dict[str, Any]) -> int:
    """Run the sidecar; return the exit code."""
    from enginewright_serving.sidecar.main import run  # noqa: PLC0415 - servers need none

    logs.configure("sidecar")
    _set({SIDECAR[name]: value for name, value in arguments["settings"].items()})
    ports = {"port": arguments["port"], "server_port": arguments["server_port"]}
    return run(*_place(arguments), **ports)


def _set(constants: Mapping[str, Any]) -> None:
    """Replace constants of the product, each named as `module:NAME`."""
    for place, value in constants.items():
        module, _, name = place.partition(":")
        home = import_module(f"enginewright_serving.{module}")
        assert hasattr(home, name), place
        setattr(home, name, value)


def _place(arguments: dict[str, Any]) -> tuple[ServeTask, Paths]:
    return ServeTask.model_validate(arguments["task"]), Paths.under(Path(arguments["root"]))


if __name__ == "__main__":
    sys.exit({"serve": serve, "watch": watch}[sys.argv[1]](json.loads(sys.argv[2])))
