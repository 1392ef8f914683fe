"""Reads the state of a rollout, with what sidecars have measured, once or until it has come to an end."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from enginewright.controller.measured import PATH
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodAddress, PodHttp, ProxiedPodHttp
from enginewright.observed.pods import PodView
from enginewright_contract.measurements import Measurements
from enginewright_contract.task import SIDECAR_PORT
from pydantic import ValidationError

from enginewright_cli import cluster
from enginewright_cli.rollout.describe import describe, to_measure
from enginewright_cli.rollout.reading import read_model, read_pods
from enginewright_cli.rollout.result import RolloutStatus

INTERVAL: Final = 2.0  # seconds between two looks
_AT_ONCE: Final = 8  # requests
_NOT_FOUND: Final = 404
_DENIED: Final = (401, 403)


def watch(
    name: str,
    namespace: str | None,
    context: str | None,
    show: Callable[[RolloutStatus], None],
    *,
    until_ended: bool,
) -> RolloutStatus:
    """Show the state of a rollout, `until_ended` again while it progresses; return the last. Raises ClusterError."""
    where = namespace or cluster.current_namespace(context)

    async def look(client: KubeClient) -> RolloutStatus:
        http = ProxiedPodHttp(partial(load_connection, context))
        try:
            while True:
                rollout = await _read(client, http, where, name)
                show(rollout)
                if not until_ended or rollout.verdict != "progressing":
                    return rollout
                await asyncio.sleep(INTERVAL)
        finally:
            await http.close()

    return cluster.query(look, context)


async def _read(client: KubeClient, http: PodHttp, namespace: str, name: str) -> RolloutStatus:
    current = await read_model(client, namespace, name)
    pods = await read_pods(client, current)
    measured = await measure(http, to_measure(current.model, pods or ()))
    return describe(current, pods, measured, datetime.now(UTC))


async def measure(http: PodHttp, pods: Iterable[PodView]) -> dict[str, Measurements | str]:
    """Return the measurements of each pod by its name, or why they are not known."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: PodView) -> tuple[str, Measurements | str]:
        async with limit:
            return pod.name, await _measurements_of(http, pod)

    return dict(await asyncio.gather(*map(one, pods)))


async def _measurements_of(http: PodHttp, pod: PodView) -> Measurements | str:
    address = PodAddress(pod.namespace, pod.name, pod.ip, SIDECAR_PORT)
    try:
        return Measurements.model_validate_json(await http.get(address, PATH))
    except NoAnswer as error:
        return f"pod {pod.name} does not report measurements: {error}"
    except BadAnswer as error:
        if error.status == _NOT_FOUND:
            return "measurements are not reported by this version of the runtime image"
        if error.status in _DENIED:
            return "you may not read measurements: they need the verb get on pods/proxy"
        return f"pod {pod.name} does not report measurements: {error}"
    except ValidationError:
        return "measurements are reported in the format of another version"
