"""Pods by which commands reach a PersistentVolumeClaim, and which are removed again whatever happens."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.errors import KubeError, NotFound
from enginewright.kube.resources import CLAIMS, PODS
from enginewright.manifests.pods import CONTAINER_SECURITY, POD_SECURITY
from enginewright.observed.pods import PodView, pod_view
from enginewright.plan.pods import waiting_for

from enginewright_cli import images
from enginewright_cli.reporting import CommandError

ROOT: Final = "/claim"  # where the claim is mounted
_POLL_SECONDS: Final = 1.0
_LIFE_SECONDS: Final = 3600  # of a pod that was left behind


def make_pod(
    namespace: str, claim: str, purpose: str, container: JsonObject, *, read_only: bool = False
) -> JsonObject:
    """Return a pod with the claim at `ROOT`; `container` has its image, command and variables."""
    name = f"enginewright-{purpose}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{secrets.token_hex(4)}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": name},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIFE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": POD_SECURITY,
            "containers": [
                {
                    "name": purpose,
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": [{"name": "claim", "mountPath": ROOT, "readOnly": read_only}],
                    **container,
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


async def check_claim(client: KubeClient, namespace: str, claim: str, remedy: str = "") -> None:
    """Raise CommandError, with the claims that exist, unless this one does."""
    try:
        await client.get(CLAIMS, namespace, claim)
    except NotFound:
        listing = await client.list(CLAIMS, namespace)
        names = ", ".join(sorted(item["metadata"]["name"] for item in listing.items)) or "none"
        raise CommandError(
            f"PersistentVolumeClaim {claim} not found in namespace {namespace}; existing: {names}{remedy}"
        ) from None


async def find_image(client: KubeClient) -> str:
    """Return the smallest runtime image that the operator knows. Raises CommandError."""
    try:
        listed = await images.list_images(client)
    except KubeError as error:
        raise CommandError(
            f"the cluster's runtime images are not known: {error.message}; name one with --image"
        ) from None
    if not listed:
        raise CommandError("the operator has not probed a runtime image yet; name one with --image")
    return min(listed, key=lambda one: (len(listed[one].backends), one))


@asynccontextmanager
async def run_pod(
    client: KubeClient,
    pod: JsonObject,
    seconds: float,
    progress: Callable[[str], None],
    is_there: Callable[[PodView], bool],
) -> AsyncIterator[str]:
    """Yield the pod's name once `is_there`, which may take so many seconds; remove it at the end. Raises CommandError."""
    namespace = pod["metadata"]["namespace"]
    created = await client.create(pod)
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    try:
        progress(f"pod {name} starts with {pod['spec']['containers'][0]['image']}")
        await _wait(client, namespace, name, seconds, is_there)
        yield name
    finally:
        await asyncio.shield(client.delete(PODS, namespace, name, uid=uid))
        progress(f"pod {name} is removed")


async def _wait(
    client: KubeClient,
    namespace: str,
    name: str,
    seconds: float,
    is_there: Callable[[PodView], bool],
) -> None:
    end = time.monotonic() + seconds
    while True:
        pod = pod_view(await client.get(PODS, namespace, name))
        if is_there(pod):
            return
        if pod.finished:
            ended = next((one.ended for one in pod.containers if one.ended), None)
            why = ended.message or f"exit code {ended.exit_code}" if ended else pod.message
            raise CommandError(f"pod {name} has ended: {why}; name another image with --image")
        if time.monotonic() > end:
            why = waiting_for(pod) or "it is not ready"
            raise CommandError(f"pod {name} has not started in {seconds:.0f} s: {why}")
        await asyncio.sleep(_POLL_SECONDS)
