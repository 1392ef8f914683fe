"""Uploads to a PersistentVolumeClaim: by a pod that mounts it, and that is removed again whatever happens.

The files go through the API server's proxy, so that no port of the cluster has to be reachable.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import authorization_of, load_connection
from enginewright.kube.resources import PODS
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from enginewright_cli import claim_pods, cluster
from enginewright_cli.reporting import CommandError
from enginewright_cli.upload.files import CHUNK, LocalFile

PORT: Final = 8080
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
        await claim_pods.check_claim(client, where, claim)
        chosen = image or await claim_pods.find_image(client)
        token = secrets.token_hex(16)
        pod = make_pod(where, claim, chosen, token)
        async with (
            claim_pods.run_pod(client, pod, seconds, progress, lambda seen: seen.ready) as name,
            aiohttp.ClientSession() as session,
        ):
            sender = _Sender(session, await load_connection(context), where, name, token)
            for file in files:
                how = await sender.store(file, folder, overwrite=overwrite)
                progress(f"{file.name}: {how}, sha256 {file.sha256[:12]} matches")

    cluster.query(act, context)


def make_pod(namespace: str, claim: str, image: str, token: str) -> JsonObject:
    """Return the pod that receives the files."""
    program = (
        resources.files("enginewright_cli.upload")
        .joinpath("receiver.py")
        .read_text(encoding="utf-8")
    )
    container = {
        "image": image,
        "command": ["python3", "-c", program, str(PORT)],
        "env": [
            {"name": "UPLOAD_ROOT", "value": claim_pods.ROOT},
            {"name": "UPLOAD_TOKEN", "value": token},
        ],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
    }
    return claim_pods.make_pod(namespace, claim, "upload", container)


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
