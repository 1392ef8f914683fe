"""Has a canary answer some of the clients' requests too, and compares its answers with the server's.

The server has answered them before they get here. One is sent at a time, so that a slow canary delays only the
next ones, of which the server keeps few. The work of the sidecar is limited to a share of a core. Neither requests
nor answers are logged or kept.
"""

import asyncio
import logging
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.manifest import Manifest
from enginewright_contract.measurements import OutputChange, ShadowComparison
from enginewright_contract.shadow import ShadowOrder, is_current, read_order
from enginewright_contract.task import HTTP_PORT
from enginewright_runtime.proof.parity.measuring import largest_of
from enginewright_runtime.session.samples import type_name

from enginewright_serving.client_tokens import copies_token
from enginewright_serving.exchanges import (
    HEADER,
    LARGEST_BYTES,
    RESOURCE,
    SHARE_QUERY,
    ExchangeHead,
)
from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.sidecar import settings
from enginewright_serving.sidecar.answer_change import change, free_axes
from enginewright_serving.sidecar.client import Client, ServerResponse, UnreachableError
from enginewright_serving.sidecar.json_tensors import JSON_BYTES, TooLargeError
from enginewright_serving.sidecar.probe_schedule import PROBING_OWN_SHARE
from enginewright_serving.sidecar.protocol import ResponseError, decode
from enginewright_serving.sidecar.samples import GoldenSamples
from enginewright_serving.sidecar.shadow_totals import ShadowTotals

_log: Final = logging.getLogger(__name__)
_INTERVAL: Final = 0.25  # seconds between looks for a request that a canary should answer too
_ANSWER_SECONDS: Final = 60.0  # timeout of its answer
_PORT: Final = HTTP_PORT  # of its server
_BUSY: Final = frozenset({408, 429, 503, 504})
_REJECTED: Final = range(400, 500)
_UNAUTHORIZED: Final = 401  # another Secret than the pod's, or an older version of it
_LARGEST_ANSWER: Final = 2 * LARGEST_BYTES
_JSON_LENGTH: Final = b"inference-header-content-length"


class Shadow:
    """The comparisons of one pod's answers with those of canaries, one canary after another."""

    def __init__(
        self,
        own: Client,
        model: str,
        header: str,
        samples: GoldenSamples,
        manifest: Manifest,
        annotation: Path,
        memory: AbstractAsyncContextManager[None],
        *,
        tokens: MountedSecret,
    ) -> None:
        """Compare with canaries that the operator's order in the file `annotation` names.

        `own` connects to the pod's server, which knows its sidecar by the line `header`. `samples` give types
        and usual values of the outputs. `memory` is held while answers are compared.
        """
        self._own = own
        self._model = model
        self._header = header
        self._samples = samples
        self._types = samples.types
        self._varying = {output.name for output in manifest.varying or ()}
        self._free = free_axes(manifest)
        self._largest: dict[str, float] = {}  # value of each output so far, once there is one
        self._annotation = annotation
        self._tokens = tokens
        self._memory = memory
        self._canaries: dict[str, Client] = {}
        self._next = 0
        self._totals: ShadowTotals | None = None
        self._earlier = 0  # requests that the server had not kept before this canary

    @property
    def result(self) -> ShadowComparison | None:
        """The comparison with the latest canary, if there was one."""
        return self._totals.document if self._totals else None

    async def step(self) -> float:
        """Compare the next request if there is an order and enough memory; return the seconds until the next step."""
        order = self._order()
        if order is None:
            self.close()
            return settings.RELEASE_INTERVAL
        began = time.process_time()
        try:
            path = f"/v2/models/{self._model}/{RESOURCE}?{SHARE_QUERY}={order.share:.12f}"
            response = await self._own.get(path, settings.REQUEST_SECONDS, self._header)
            head = ExchangeHead.read(response.headers[HEADER.lower().encode()])
        except (UnreachableError, KeyError, ValueError):  # starting, or not our server
            return settings.RELEASE_INTERVAL
        totals = self._begin(order.revision, head.dropped)
        totals.dropped["NotKept"] = max(0, head.dropped - self._earlier)
        if not head.request:
            return _INTERVAL
        body = memoryview(response.body)
        request, answer = body[: head.request], body[head.request :]
        theirs = await self._ask(order, totals, request, head.request_json)
        if theirs is not None:
            try:
                async with self._memory:
                    changes = await asyncio.to_thread(
                        self._compare, answer, head.answer_json, theirs
                    )
            except TooLargeError as error:
                if not totals.dropped["TooLarge"]:
                    _log.warning("an answer is not compared with the canary's: it %s", error)
                totals.dropped["TooLarge"] += 1
            else:
                totals.add(changes)
        worked = time.process_time() - began
        return worked * (1 / PROBING_OWN_SHARE - 1)

    def close(self) -> None:
        """Close the connections to canaries."""
        for canary in self._canaries.values():
            canary.close()
        self._canaries.clear()

    def _order(self) -> ShadowOrder | None:
        try:
            text = self._annotation.read_text()
        except (OSError, ValueError):  # an earlier operator's pod template has no such file
            return None
        order = read_order(text)
        return order if order is not None and is_current(order, time.time()) else None

    def _begin(self, revision: str, dropped: int) -> ShadowTotals:
        """Return the totals of a canary; another one's begin with nothing."""
        totals = self._totals
        if totals is None or totals.revision != revision:
            _log.info("clients' requests are compared with the answers of revision %s", revision)
            self.close()
            totals = self._totals = ShadowTotals(revision)
            self._earlier = dropped
        elif dropped < self._earlier:  # the server has restarted
            self._earlier = 0
        return totals

    async def _ask(
        self,
        order: ShadowOrder,
        totals: ShadowTotals,
        request: memoryview,
        json_length: int | None,
    ) -> ServerResponse | None:
        client = self._canary(order)
        base = f"/v2/models/{self._model}/versions/{order.revision}"
        authorization = self._authorization(order.revision)
        try:
            # another pod may have got the address: it must not get the request
            ready = await client.get(f"{base}/ready", settings.REQUEST_SECONDS, authorization)
        except UnreachableError:
            ready = None
        if ready is not None and ready.status == _UNAUTHORIZED:
            totals.dropped["CanaryRefused"] += 1
            return None
        if ready is None or ready.status != 200:
            totals.dropped["CanaryNotReady"] += 1
            return None
        headers = f"{HEADER}: {order.token}\r\n{authorization}"
        if json_length is not None:
            headers += f"Inference-Header-Content-Length: {json_length}\r\n"
        try:
            response = await client.post(f"{base}/infer", headers, (request,), _ANSWER_SECONDS)
        except UnreachableError:
            totals.failed += 1
            return None
        if response.status == 200:
            return response
        if response.status in _BUSY:
            totals.dropped["CanaryBusy"] += 1
        elif response.status in _REJECTED:
            totals.rejected += 1
        else:
            totals.failed += 1
        return None

    def _authorization(self, revision: str) -> str:
        try:
            token = copies_token(self._tokens.read(), revision)
        except OSError:
            token = ""
        return f"Authorization: Bearer {token}\r\n" if token else ""

    def _canary(self, order: ShadowOrder) -> Client:
        for address in self._canaries.keys() - set(order.addresses):
            self._canaries.pop(address).close()
        self._next = (self._next + 1) % len(order.addresses)
        address = order.addresses[self._next]
        return self._canaries.setdefault(
            address,
            Client(
                _PORT,
                host=address,
                response_bytes=_LARGEST_ANSWER,
                tls=self._own.uses_tls,
                expected=lambda: self._own.certificate,
            ),
        )

    def _compare(
        self, answer: memoryview, json_length: int | None, theirs: ServerResponse
    ) -> list[OutputChange]:
        """Return how the outputs differ; called in a thread, since large ones take long."""
        own = decode(answer, json_length, None, self._types, JSON_BYTES // 2)
        own = {name: array for name, array in own.items() if name not in self._varying}
        length = theirs.headers.get(_JSON_LENGTH, b"")
        try:
            json_length = int(length) if length.isdigit() else None
            others = decode(theirs.body, json_length, own, self._types)
        except (ResponseError, TooLargeError) as error:
            is_large = isinstance(error, TooLargeError)  # twice as large as ours at least
            form = f"the canary's answer {error if is_large else 'has another type'}"
            return [OutputChange(name=name[:TEXT_LENGTH], form=form) for name in own]
        if not self._largest:
            self._largest = self._samples.largest_values()
        changes = []
        for name, array in own.items():
            dtype = type_name(self._types.outputs[name])
            largest = max(self._largest.get(name, 0.0), largest_of(array, dtype))
            self._largest[name] = largest
            free = self._free.get(name, ())
            changes.append(change(name, array, others[name], dtype, free=free, largest=largest))
        return changes
