"""An operator that is disturbed, and started again when it exits, beside a cluster that is not: what must not be lost."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from enginewright_contract.keys import sha256_text

from tests.apiserver.world import GOOD, MODEL, PUBLISHED, World, model, task_of
from tests.e2e.harness import eventually
from tests.support import simulated_cluster as played
from tests.support.api_proxy import ApiProxy
from tests.support.operator_process import OperatorProcess, chart_kubeconfig

DEPLOYMENT: Final = f"{MODEL}-cpu"
OWNED: Final = "jobs,deployments,services,controllerrevisions,pdb,pods"
_PAUSE: Final = 0.2  # seconds between two looks at what there is to do
_CONVERGENCE: Final = 150.0  # seconds: what was refused is tried again within two minutes
_KOPF: Final = "logger=kopf"  # it says of each attempt to watch that it has failed
_RETRIED: Final = "; retrying in "


class Busy:
    """A thread that does the same again and again."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._goes_on = threading.Event()
        self._goes_on.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.go_on()
        self._thread.join(60)

    def pause(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def _run(self) -> None:
        while not self._ends.wait(_PAUSE):
            self._goes_on.wait()
            # the API server is down, or an object is deleted
            with suppress(OSError, AssertionError, KeyError):
                self._work()


@dataclass
class Disturbed:
    """A cluster with an operator behind a proxy; Jobs and Deployments are played at once, without the proxy."""

    world: World
    proxy: ApiProxy
    operator: OperatorProcess
    players: Busy
    exits: list[int] = field(default_factory=list)
    revoked: dict[str, Any] = field(default_factory=dict)  # a ClusterRoleBinding
    _replicas: int = 0  # as last asked for
    _models: int = 0
    _logged: int = 0

    def begin(self) -> dict[str, str]:
        """Return the versions of all that is at rest, once it is; what is logged from now on is judged."""
        self.operator.wait_quiet()
        self._logged, self.exits[:] = len(self.operator.log), []
        return self.world.versions()

    @property
    def log(self) -> str:
        """Return what was logged since the beginning."""
        return self.operator.log[self._logged :]

    @contextmanager
    def edit(self, replicas: int) -> Iterator[str]:
        """Scale the model that serves and apply another one, as users do who repeat what fails; yield its name."""
        self._replicas, self._models = replicas, self._models + 1
        name = f"n{self._models}"
        other = model(name, uri=f"https://example.com/{name}.onnx")

        def insist() -> None:
            changes = {"spec": {"replicas": replicas}}
            self.insist(lambda: self.world.user.patch("im", MODEL, changes))
            self.insist(lambda: self.world.user.put(other))

        user = threading.Thread(target=insist, daemon=True)
        user.start()
        yield name
        user.join(_CONVERGENCE)

    def insist(self, request: Callable[[], object]) -> None:
        """Repeat a request until the API server takes it."""
        eventually(lambda: request() or True, _CONVERGENCE, "the API server", interval=0.2)

    def has_seen_edit(self) -> bool:
        """Return whether the operator has acted on the last edit of the model that serves."""
        served = self.world.user.get("im", MODEL)
        seen = served["status"]["observedGeneration"] == served["metadata"]["generation"]
        return bool(seen and served["spec"]["replicas"] == self._replicas)

    def wait_converged(self, replicas: int, *others: str) -> None:
        """Wait until everything is as users want it, and nothing is written any more."""

        def is_scaled() -> bool:
            status = self.world.user.get("deployment", DEPLOYMENT)["status"]
            return bool(status.get("availableReplicas") == replicas)

        def is_ready(name: str) -> bool:
            ready = self.world.user.condition(name, "Ready")
            return (ready.get("status"), ready.get("reason")) == ("True", "Serving")

        eventually(is_scaled, _CONVERGENCE, f"{replicas} replicas", interval=0.2)
        for name in (MODEL, *others):
            eventually(lambda: is_ready(name), _CONVERGENCE, f"{name} to be Ready", interval=0.2)  # noqa: B023 - called at once
            eventually(lambda: self._has_event(name), 90, f"{name}'s Event", interval=0.2)  # noqa: B023 - likewise
        eventually(lambda: self.operator.leads, 60, "a leader", interval=0.1)
        self.operator.wait_quiet(2.0)

    def _has_event(self, name: str) -> bool:
        events = self.world.user.items("events", fields=f"involvedObject.name={name}")
        return any(event["reason"] == "Serving" for event in events)

    def check(self, before: Mapping[str, str], *others: str) -> None:
        """Check that all but the edited models was left alone, and that nothing was done twice."""
        touched = {MODEL, DEPLOYMENT, *others}
        after = self.world.versions()
        changed = {
            key
            for key, version in before.items()
            if after.get(key) != version and key.rpartition("/")[2] not in touched
        }
        assert not changed, "written, though nothing was to be done"
        for name in others:
            jobs = self.world.user.items("jobs", f"enginewright.dev/model={name}")
            assert len(jobs) == 1, f"{name} was prepared {len(jobs)} times"

    def check_log(self, says: str) -> None:
        """Check that the log has what is documented, and no other error."""
        assert re.search(says, self.log), f"not logged: {says}"
        errors = [line for line in self.log.splitlines() if " level=error" in line]
        expected = f"{_KOPF}|{_RETRIED}|{says}" if says else f"{_KOPF}|{_RETRIED}"
        assert not [line for line in errors if not re.search(expected, line)]
        assert "Traceback" not in self.log

    def find_serving(self) -> dict[str, object]:
        """Return what identifies what serves the first model, and its template."""
        deployment = self.world.user.get("deployment", DEPLOYMENT)
        service = self.world.user.get("service", MODEL)
        return {
            "deployment": deployment["metadata"]["uid"],
            "template": deployment["spec"]["template"],
            "service": service["metadata"]["uid"],
            "selector": service["spec"]["selector"],
        }

    # what others do

    def restart(self) -> None:
        """Start the operator again if it has exited, as a kubelet does."""
        if (code := self.operator.exit_code()) is not None:
            self.exits.append(code)
            self.operator.__enter__()

    def forget(self, name: str) -> None:
        """Delete a model, and what it owns as the garbage collector does."""
        user = self.world.user
        user.delete("im", name)
        user.delete_all(OWNED, f"enginewright.dev/model={name}")


def play(world: World) -> None:
    """Have Jobs succeed, and Deployments bring their pods up."""
    if any(not job["status"].get("conditions") for job in world.jobs("probe")):
        world.probe_images()
    for job in world.jobs("prepare"):
        if not job["status"].get("conditions"):
            _prepare(world, job)
    for deployment in world.user.items("deployments"):
        observed = deployment.get("status", {}).get("observedGeneration")
        if observed != deployment["metadata"]["generation"]:
            played.roll_out(world.user, deployment["metadata"]["name"])


def _prepare(world: World, job: dict[str, Any]) -> None:
    key = sha256_text(task_of(job["spec"]["template"]["spec"]["initContainers"][0]))
    published = {**PUBLISHED, "key": key, "model_digest": key}
    pod = played.start_pod(world.user, job)
    stages = {**GOOD, "publish": {"ok": True, "published": published}}
    played.run_stages(world.user, pod, stages)
    played.complete_job(world.user, job["metadata"]["name"])


@contextmanager
def disturb(world: World, *, seed: int = 0) -> Iterator[Disturbed]:
    """Have an operator with the chart's rights behind a proxy, and a model that serves."""
    limited = chart_kubeconfig(world.system, world.folder)
    with ApiProxy(limited, world.folder, seed) as proxy:
        operator = OperatorProcess(proxy.kubeconfig, world.system.name, world.folder)
        with operator, Busy(lambda: play(world)) as players:
            operator.wait_ready()
            world.user.apply(model())
            world.user.wait_condition(MODEL, "Ready", "True", "Serving", 60)
            disturbed = Disturbed(world, proxy, operator, players)
            with Busy(disturbed.restart):
                yield disturbed
