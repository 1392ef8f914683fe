"""Finds the container of a stage among a model's pods, and reads its log."""

from collections.abc import Iterator
from dataclasses import dataclass

from enginewright.kube.client import KubeClient
from enginewright.kube.errors import Forbidden, KubeError
from enginewright.observed.pods import Container, PodView
from enginewright.plan import pods as reports

from enginewright_cli.diagnose.reading import ModelObjects
from enginewright_cli.reporting import CommandError


@dataclass(frozen=True)
class LogSource:
    """A container whose log can be read."""

    pod: PodView
    container: Container

    @property
    def title(self) -> str:
        """Return what it is, and how it ended."""
        ended = self.container.ended
        state = f"exit code {ended.exit_code}" if ended else "running"
        return f"Pod {self.pod.name}, container {self.container.name}: {state}"


def list_sources(seen: ModelObjects) -> Iterator[LogSource]:
    """Yield the containers that have run, of the newest pod first."""
    for pod in reversed(seen.pods):
        for container in pod.containers:
            if container.running or container.ended or container.restarts:
                yield LogSource(pod, container)


def choose(seen: ModelObjects, stage: str | None) -> LogSource:
    """Return the newest container of a stage; by default one that failed, else one that runs. Raises CommandError."""
    sources = tuple(list_sources(seen))
    names = tuple(dict.fromkeys(source.container.name for source in sources))
    if not sources:
        unread = f" ({'; '.join(seen.unread)})" if seen.unread else ""
        raise CommandError(
            f"no container of InferenceModel {seen.name} has run{unread}; Jobs are removed some time after"
            f" they end: `enginewright explain {seen.name}` says what their last stage reported"
        )
    if stage is not None:
        matching = [source for source in sources if source.container.name == stage]
        if not matching:
            raise CommandError(
                f"no pod has run stage {stage}; stages with a log: {', '.join(names)}"
            )
        return matching[0]
    for source in sources:
        failed = reports.failure(source.pod)
        if failed and failed.stage == source.container.name and not source.pod.ready:
            return source
    running = [source for source in sources if source.container.running]
    own = [source for source in running if source.container.name != "sidecar"]
    return next(iter(own or running or sources))


async def read(api: KubeClient, source: LogSource, *, tail: int, previous: bool) -> str:
    """Return the last lines of a container's log. Raises CommandError if it cannot be read."""
    pod = source.pod
    try:
        return await api.read_log(
            pod.namespace, pod.name, source.container.name, tail=tail, previous=previous
        )
    except Forbidden as error:
        raise CommandError(
            f"you may not read logs: {error.message}; they need the verb get on pods/log"
        ) from error
    except KubeError as error:
        earlier = "" if previous else "; an earlier run's log: --previous"
        raise CommandError(f"{source.title}: its log is gone: {error.message}{earlier}") from error
