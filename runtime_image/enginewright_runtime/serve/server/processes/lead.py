"""What the first server process answers for all of a pod, whichever process was asked.

Counters are sums over all processes, those that have ended included, so they never decrease.
"""

import asyncio
from typing import Final

import orjson
from enginewright.contract.measurements import ServerMeasurements
from enginewright.contract.task import ServeTask

from enginewright_runtime.core.paths import Paths
from enginewright_runtime.serve import lanes
from enginewright_runtime.serve.server import memory
from enginewright_runtime.serve.server import metrics as figures
from enginewright_runtime.serve.server.app import ServerApp
from enginewright_runtime.serve.server.application import bind_beside, json_response
from enginewright_runtime.serve.server.endpoints import Endpoints
from enginewright_runtime.serve.server.message import HttpResponse
from enginewright_runtime.serve.server.pod_resources import PodResource, SharedAnswers
from enginewright_runtime.serve.server.processes import messages
from enginewright_runtime.serve.server.processes.channel import ProcessMessage
from enginewright_runtime.serve.server.processes.exposition import (
    Families,
    describe,
    expose,
    sum_families,
)
from enginewright_runtime.serve.server.processes.group import Followers
from enginewright_runtime.serve.server.processes.members import Sockets, Surroundings
from enginewright_runtime.serve.server.processes.shares import task_of_process
from enginewright_runtime.serve.server.processes.totals import (
    merge_latencies,
    sum_buckets,
    sum_statistics,
)
from enginewright_runtime.serve.server.request_failures import unexpected
from enginewright_runtime.serve.server.settings import ServerSettings
from enginewright_runtime.session.request_errors import RequestError

_ASK_SECONDS: Final = 0.5  # for other processes' figures; of one that is late the last ones count
_RESPONSES: Final = "enginewright_requests"
_OF_SESSION: Final = ("providers", "session", "placement")


class PodAnswers:
    """Answers requests about the whole pod (`PodResources`)."""

    def __init__(self, app: ServerApp, group: Followers) -> None:
        self._app = app
        self._group = group
        self._turn = 0
        self._build = {
            PodResource.METRICS: self._metrics,
            PodResource.MEASUREMENTS: self._measurements,
            PodResource.EXECUTION: self._execution,
            PodResource.STATISTICS: self._statistics,
            PodResource.COPY: self._copy,
        }

    async def answer(self, resource: PodResource, target: bytes) -> HttpResponse:
        """Return the response to a request with this target."""
        return await self._build[resource](target)

    async def take(self, message: ProcessMessage) -> ProcessMessage:
        """Answer a request that another process received."""
        try:
            resource = PodResource(message.fields["resource"])
            target = message.fields["target"].encode("latin-1")
            response = await self.answer(resource, target)
        except RequestError as error:
            response = self._app.error(error)
        except Exception:  # noqa: BLE001 - an internal error fails one request
            response = self._app.error(unexpected("serving a request"))
        return messages.response_message(messages.ANSWER, response)

    async def _refresh(self, kind: str) -> list[ProcessMessage]:
        """Ask all other processes."""
        return await self._group.refresh(kind, _ASK_SECONDS)

    def _totals(self) -> Families:
        own = describe(self._app.metrics.families())
        return sum_families([own, *(each.metrics for each in self._group.known)])

    async def _metrics(self, _: bytes) -> HttpResponse:
        await self._refresh(messages.REPORT)
        text = expose(self._totals())
        return HttpResponse(200, figures.CONTENT_TYPE, [text], len(text))

    async def _measurements(self, _: bytes) -> HttpResponse:
        model = self._app.inference.require_model()
        await asyncio.gather(*map(self._refresh, (messages.REPORT, messages.MEASUREMENTS)))
        known = self._group.known
        latencies = merge_latencies(
            [model.buckets.latencies(), *(each.latencies for each in known)]
        )
        document = ServerMeasurements(
            started=self._app.started,
            memory_bytes=memory.resident_bytes() + sum(each.memory for each in known),
            responses={
                labels["code"]: int(count)
                for _, labels, count in self._totals()[_RESPONSES]["samples"]
                if count
            },
            latencies=latencies,
        )
        return json_response(200, document.to_json().encode())

    async def _execution(self, _: bytes) -> HttpResponse:
        """Return the report of a process whose session is not as this one's, else of this one."""
        model = self._app.inference.require_model()
        answers = await self._refresh(messages.EXECUTION)
        own = orjson.loads(model.execution.document())
        others = [orjson.loads(each.body) for each in answers]
        found = next((one for one in others if any(one[e] != own[e] for e in _OF_SESSION)), own)
        buckets = sum_buckets(
            [model.buckets.report(), *(each.buckets for each in self._group.known)]
        )
        found["buckets"] = [each.model_dump(mode="json", exclude_none=True) for each in buckets]
        if outside := found.get("outside_profiles"):
            known = sum(each.outside for each in self._group.known)
            outside["requests"] = self._app.metrics.outside + known
        found["details"]["processes"] = 1 + len(self._group.serving)
        return json_response(200, found)

    async def _statistics(self, _: bytes) -> HttpResponse:
        self._app.inference.require_model()
        await self._refresh(messages.REPORT)
        known = (each.statistics for each in self._group.known)
        total = sum_statistics([self._app.statistics(), *(each for each in known if each)])
        return json_response(200, {"model_stats": [total]})

    async def _copy(self, target: bytes) -> HttpResponse:
        """Return a copy of a request that any process has answered; in turn, each is the first asked."""
        self._turn += 1
        app, group = self._app, self._group
        asked = [0, *group.serving]
        first = self._turn % len(asked)
        response: HttpResponse | None = None
        for index in (*asked[first:], *asked[:first]):
            elsewhere = sum(each.dropped for each in group.known)
            if index:
                elsewhere += app.copies.dropped - group.dropped(index)
                fields = {"target": target.decode("latin-1"), "elsewhere": elsewhere}
                answer = await group.ask(index, ProcessMessage(messages.COPY, fields), _ASK_SECONDS)
                response = response if answer is None else messages.read_response(answer)
            else:
                response = app.take_copy(target, elsewhere)
            if response is not None and response.length:
                return response
        return response or app.take_copy(target)


def make_group(
    task: ServeTask,
    settings: ServerSettings,
    paths: Paths,
    token: str,
    endpoints: Endpoints,
    listening: Sockets,
) -> Followers:
    """Return the group of the processes beside this one, whose `endpoints` answer for all from now on.

    Args:
        task: of the pod.
        settings: of each process.
        paths: of the artefact and of clients' tokens.
        token: of the pod's sidecar.
        endpoints: this process's.
        listening: the shared sockets that these accept on.

    Raises:
        OSError: a socket cannot be opened.
    """
    app = endpoints.app
    inference = app.inference
    start = {
        "task": task_of_process(task).model_dump(mode="json"),
        "artifact": str(paths.artifact),
        "tokens": str(paths.tokens),
        "tls": str(paths.tls),
        "token": token,
    }
    http, grpc = listening
    sockets = [(bind_beside(http), bind_beside(grpc)) for _ in range(1, task.processes)]

    async def take(message: ProcessMessage) -> ProcessMessage:
        return await answers.take(message)

    surroundings = Surroundings(
        accept=endpoints.accept,
        stop=endpoints.stop,
        why_not_live=inference.own_why_not_live,
        why_not_ready=inference.why_not_ready,
        answer=take,
        progress=inference.progress,
    )
    group = Followers(sockets, start, settings, surroundings)
    answers = PodAnswers(app, group)
    app.pod = SharedAnswers(answers)
    inference.others = group
    endpoints.accept_lane(lanes.listen(token, 0))
    return group
