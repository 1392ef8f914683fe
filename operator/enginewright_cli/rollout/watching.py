"""Reads the state of a rollout, once or until it has come to an end."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.pod_http import PodHttp, ProxiedPodHttp

from enginewright_cli import cluster
from enginewright_cli.rollout.describe import describe, to_measure
from enginewright_cli.rollout.live import measure
from enginewright_cli.rollout.reading import read_model, read_pods
from enginewright_cli.rollout.reporting import NotCarriedOut
from enginewright_cli.rollout.result import RolloutStatus

INTERVAL: Final = 2.0  # seconds between two looks


def watch(
    name: str,
    namespace: str | None,
    context: str | None,
    show: Callable[[RolloutStatus], None],
    *,
    until_ended: bool,
) -> RolloutStatus:
    """Show the state of a rollout, with `until_ended` until it is no longer progressing; return the last.

    Raises:
        NotCarriedOut: there is no cluster, no such model or no access.
    """
    where = namespace or cluster.current_namespace(context)

    async def look(client: KubeClient) -> RolloutStatus:
        http = ProxiedPodHttp(partial(load_connection, context))
        try:
            while True:
                found = await _read(client, http, where, name)
                show(found)
                if not until_ended or found.verdict != "progressing":
                    return found
                await asyncio.sleep(INTERVAL)
        finally:
            await http.close()

    try:
        return cluster.query(look, context)
    except cluster.ClusterError as error:
        raise NotCarriedOut(str(error)) from error


async def _read(client: KubeClient, http: PodHttp, namespace: str, name: str) -> RolloutStatus:
    known = await read_model(client, namespace, name)
    pods = await read_pods(client, known)
    measured = await measure(http, to_measure(known.model, pods or ()))
    return describe(known, pods, measured, datetime.now(UTC))
