"""Rights that the chart grants and that nothing needs: its roles, compared with what the API servers of a run have seen."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
import yaml
from typing_extensions import override

from tests.e2e.harness import REPOSITORY, run
from tests.support import effort

Json: TypeAlias = dict[str, Any]

ACCOUNT: Final = ":enginewright"  # how the name of an operator's user ends, in any namespace
FILE: Final = "used-rights.json"
LAYER: Final = "tests/apiserver"
_SETTINGS: Final = (
    "images.operator=o:1",
    "images.runtime.cpu=c:1",
    "accelerators.propose=true",
)


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str  # with its subresource
    verb: str

    @override
    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}"


_APPLIED: Final = (  # what operators apply
    ("", "persistentvolumeclaims"),
    ("", "services"),
    ("apps", "controllerrevisions"),
    ("apps", "deployments"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("batch", "jobs"),
    ("enginewright.dev", "acceleratorclasses"),
    ("enginewright.dev", "inferenceengines"),
    ("enginewright.dev", "inferencemodels"),
    ("gateway.networking.k8s.io", "httproutes"),
    ("policy", "poddisruptionbudgets"),
    ("resource.k8s.io", "resourceclaimtemplates"),
)
_OWNERS: Final = ("inferenceengines/finalizers", "inferencemodels/finalizers")

# granted, though not every run on played clusters needs them -> why
EXCEPTIONS: Final[dict[Right, str]] = {
    **{
        Right(group, resource, "get"): "read where another client's write came between"
        for group, resource in _APPLIED
    },
    **{
        Right("enginewright.dev", resource, "update"): "owner references on OpenShift need it"
        for resource in _OWNERS
    },
    Right("", "pods", "patch"): "serving pods, which no kubelet of played clusters runs",
}


def find_used(log: Iterable[str]) -> Iterator[Right]:
    """Yield what operators were allowed, by the lines of an audit log."""
    for line in log:
        if not line.endswith("\n"):  # it is being written
            continue
        event = json.loads(line)
        target = event.get("objectRef")
        decision = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
        if not target or decision != "allow" or not event["user"]["username"].endswith(ACCOUNT):
            continue
        subresource = target.get("subresource")
        resource = target["resource"] + (f"/{subresource}" if subresource else "")
        used = Right(target.get("apiGroup", ""), resource, event["verb"])
        yield used
        if used.verb == "patch" and (event.get("responseStatus") or {}).get("code") == 201:
            yield used._replace(verb="create")  # server-side apply of a new object needs both


def find_granted(roles: Iterable[Json]) -> set[Right]:
    """Return what roles grant."""
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def list_roles(helm: str) -> list[Json]:
    """Return the roles of the chart with everything on that needs rights."""
    chart = str(REPOSITORY / "charts/enginewright")
    sets = [f"--set={setting}" for setting in _SETTINGS]
    rendered = yaml.safe_load_all(run([helm, "template", "enginewright", chart, *sets]))
    names = {"enginewright"}
    return [
        item
        for item in rendered
        if item and item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] in names
    ]


def keep_used(kubeconfig: Path, folder: Path) -> None:
    """Write what operators have used of an API server that is about to go, and what they had, into a folder."""
    used: set[Right] = set()
    for log in (kubeconfig.parent / "logs").glob("audit*.log"):
        with log.open(encoding="utf-8") as lines:
            used.update(find_used(lines))
    granted = find_granted(list_roles(str(kubeconfig.parent / "bin/helm")))
    text = json.dumps({"used": sorted(used), "granted": sorted(granted)})
    (folder / f"{kubeconfig.parent.name}-{FILE}").write_text(text)


def find_problems(folder: Path) -> list[str]:
    """Return what is wrong with the roles, by what all processes of a run have kept."""
    kept = [json.loads(path.read_text()) for path in folder.rglob(f"*-{FILE}")]
    used = {Right(*right) for item in kept for right in item["used"]}
    granted = {Right(*right) for item in kept for right in item["granted"]}
    unused = sorted(granted - used - EXCEPTIONS.keys())
    return [
        *(f"no test needs the right to {right}: take it from the chart" for right in unused),
        *(f"{right} is not granted: it is no exception" for right in EXCEPTIONS.keys() - granted),
    ]


def is_whole(config: pytest.Config) -> bool:
    """Return whether this process controls a run of the whole layer, which it does not leave early."""
    names = (
        "keyword",
        "markexpr",
        "deselect",
        "ignore",
        "ignore_glob",
        "lf",
        "collectonly",
        "maxfail",
    )
    selects = any(getattr(config.option, name, None) for name in names)
    controls = not hasattr(config, "workerinput")
    return effort.THOROUGH and controls and LAYER in config.args and not selects
