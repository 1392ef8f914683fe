"""Uploads to a PersistentVolumeClaim: by a pod that mounts it, and that is removed again whatever happens.

The files go through the API server's proxy, so that no port of the cluster has to be reachable.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import authorization_of, load_connection
from enginewright.kube.errors import KubeError, NotFound
from enginewright.kube.resources import CLAIMS, PODS
from enginewright.manifests.pods import CONTAINER_SECURITY, POD_SECURITY
from enginewright.observed.pods import pod_view
from enginewright.plan.pods import waiting_for
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from enginewright_cli import cluster, images
from enginewright_cli.reporting import CommandError
from enginewright_cli.upload.files import CHUNK, LocalFile

PORT: Final = 8080
_ROOT: Final = "/claim"
_POLL_SECONDS: Final = 1.0
_LIFE_SECONDS: Final = 3600  # of a pod that was left behind
_OK, _FORBIDDEN = 200, 403

Progress = Callable[[str], None]


def upload(
    claim: str,
    folder: str,
    files: Sequence[LocalFile],
    *,
    image: str | None,
    overwrite: bool,
    seconds: float,
    namespace: str | None,
    context: str | None,
    progress: Progress,
) -> None:
    """Write files below a folder of a claim. Raises CommandError; the pod is removed in any case."""
    where = namespace or cluster.current_namespace(context)

    async def act(client: KubeClient) -> None:
        await _check_claim(client, where, claim)
        chosen = image or await _image(client)
        token = secrets.token_hex(16)
        pod = await client.create(make_pod(where, claim, chosen, token))
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            progress(f"pod {name} starts with {chosen}")
            await _wait(client, where, name, seconds)
            async with aiohttp.ClientSession() as session:
                sender = _Sender(session, await load_connection(context), where, name, token)
                for file in files:
                    how = await sender.store(file, folder, overwrite=overwrite)
                    progress(f"{file.name}: {how}, sha256 {file.sha256[:12]} matches")
        finally:
            await asyncio.shield(client.delete(PODS, where, name, uid=uid))
            progress(f"pod {name} is removed")

    cluster.query(act, context)


async def _check_claim(client: KubeClient, namespace: str, claim: str) -> None:
    try:
        await client.get(CLAIMS, namespace, claim)
    except NotFound:
        listing = await client.list(CLAIMS, namespace)
        names = ", ".join(sorted(item["metadata"]["name"] for item in listing.items)) or "none"
        raise CommandError(
            f"PersistentVolumeClaim {claim} not found in namespace {namespace}; existing: {names}"
        ) from None


async def _image(client: KubeClient) -> str:
    try:
        listed = await images.list_images(client)
    except KubeError as error:
        raise CommandError(
            f"the cluster's runtime images are not known: {error.message}; name one with --image"
        ) from None
    if not listed:
        raise CommandError("the operator has not probed a runtime image yet; name one with --image")
    return min(listed, key=lambda one: (len(listed[one].backends), one))  # the smallest


def make_pod(namespace: str, claim: str, image: str, token: str) -> JsonObject:
    """Return the pod that receives the files."""
    program = (
        resources.files("enginewright_cli.upload")
        .joinpath("receiver.py")
        .read_text(encoding="utf-8")
    )
    container = {
        "name": "upload",
        "image": image,
        "command": ["python3", "-c", program, str(PORT)],
        "env": [
            {"name": "UPLOAD_ROOT", "value": _ROOT},
            {"name": "UPLOAD_TOKEN", "value": token},
        ],
        "securityContext": CONTAINER_SECURITY,
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "claim", "mountPath": _ROOT}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"enginewright-upload-{token[:8]}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "enginewright-upload"},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIFE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": POD_SECURITY,
            "containers": [container],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


async def _wait(client: KubeClient, namespace: str, name: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        pod = pod_view(await client.get(PODS, namespace, name))
        if pod.ready:
            return
        if pod.finished:
            ended = next((one.ended for one in pod.containers if one.ended), None)
            why = ended.message or f"exit code {ended.exit_code}" if ended else pod.message
            raise CommandError(f"pod {name} has ended: {why}; name another image with --image")
        if time.monotonic() > end:
            why = waiting_for(pod) or "it is not ready"
            raise CommandError(f"pod {name} has not started in {seconds:.0f} s: {why}")
        await asyncio.sleep(_POLL_SECONDS)


class _Sender:
    """Sends files to one pod through the API server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        configuration: Configuration,
        namespace: str,
        pod: str,
        token: str,
    ) -> None:
        self._session = session
        self._configuration = configuration
        self._path = f"{PODS.path(namespace, pod)}:{PORT}/proxy"
        self._token = token
        self._tls = RESTClientObject(configuration).ssl_context

    async def store(self, file: LocalFile, folder: str, *, overwrite: bool) -> str:
        """Have a file in the claim, and compare the digest that the pod has read there; return what was done."""
        place = "/".join(filter(None, (folder, file.name)))
        before = "" if overwrite else await self._post(place, {"Look": "true"}, None)
        if before == file.sha256:
            return "is there already"
        if before:
            raise CommandError(
                f"{place} exists with other content; name another path, or replace it with --overwrite:"
                " a model that names it reports SourceChanged until it is refreshed"
            )
        if await self._post(place, {"Content-Length": str(file.size)}, file) != file.sha256:
            raise CommandError(
                f"{place}: the digest in the claim differs from the file's; run it again"
            )
        return f"{file.size:,} bytes"

    async def _post(self, place: str, how: dict[str, str], file: LocalFile | None) -> str:
        """Return the digest of what is in a place, or "", after a file, if any, was stored there."""
        configuration = self._configuration
        authorization = await authorization_of(configuration)
        headers = {
            "Enginewright-Upload": self._token,
            **how,
            **({"Authorization": authorization} if authorization else {}),
        }
        try:
            async with self._session.post(
                f"{configuration.host}{self._path}/{quote(place)}",
                data=_chunks(file) if file else None,
                headers=headers,
                ssl=self._tls,
                proxy=configuration.proxy,
                server_hostname=configuration.tls_server_name,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=300),
            ) as response:
                status, document = response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise CommandError(f"{place}: the transfer broke off: {error}; run it again") from None
        answer: dict[str, Any] = document if isinstance(document, dict) else {}
        why = answer.get("error") or answer.get("message") or f"status {status}"
        if status == _FORBIDDEN:
            raise CommandError(f"you may not upload: {why}; it needs the verb create on pods/proxy")
        if status != _OK:
            raise CommandError(f"{place} is not stored: {why}")
        return str(answer.get("sha256") or "")


async def _chunks(file: LocalFile) -> AsyncIterator[bytes]:
    with file.path.open("rb") as reader:
        for chunk in iter(partial(reader.read, CHUNK), b""):
            yield chunk
