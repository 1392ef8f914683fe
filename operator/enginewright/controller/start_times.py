"""Passes what pods measured at their start on to pods of the same revision that have not started.

Kept in memory alone, since a server without it measures by itself. A model that is deleted and applied again has the
same revision, so its pods are given what those before them measured.
"""

from collections import OrderedDict
from typing import Final, TypeAlias

from enginewright_contract.task import SIDECAR
from enginewright_contract.verdict import TIMES_ANNOTATION, Verdict

from enginewright.manifests.labels import CANARY, CLASS, COMPONENT, MODEL, REVISION, SERVE
from enginewright.observed.pods import PodView

_MOST_CHARACTERS: Final = 8192  # of an annotation; longer ones are not passed on
_MOST_GROUPS: Final = 10_000  # the latest ones

_Group: TypeAlias = tuple[str, ...]


class StartTimesMemory:
    """The last times of each revision on each class."""

    def __init__(self) -> None:
        self._last: OrderedDict[_Group, str] = OrderedDict()

    def learn(self, pod: PodView, verdict: Verdict) -> None:
        """Keep the times in a pod's verdict, if it has them."""
        if verdict.times is None:
            return
        text = verdict.times.model_copy(update={"usual": verdict.baseline}).to_json()
        if len(text) <= _MOST_CHARACTERS:
            self._last[_group(pod)] = text
            self._last.move_to_end(_group(pod))
        if len(self._last) > _MOST_GROUPS:
            self._last.popitem(last=False)

    def find_for(self, pod: PodView) -> str | None:
        """Return the annotation that a pod lacks which has not started, if it is known."""
        is_serving = pod.label(COMPONENT) in (SERVE, CANARY) and not pod.leaving
        sidecar = pod.container(SIDECAR)
        has_started = sidecar is not None and (sidecar.running or sidecar.ended or sidecar.restarts)
        if not is_serving or has_started or TIMES_ANNOTATION in pod.annotations:
            return None
        return self._last.get(_group(pod))


def _group(pod: PodView) -> _Group:
    return pod.namespace, pod.label(MODEL), pod.label(CLASS), pod.label(REVISION)
