"""Creates the plan: where its facts come from, and one forecast per model of the manifest."""

from pathlib import Path
from typing import Final

from enginewright_cli import cluster, installing
from enginewright_cli.plan import manifest as manifests
from enginewright_cli.plan.cluster_state import (
    ClusterState,
    assume_state,
    facts,
    live_model,
)
from enginewright_cli.plan.forecast import forecast, refuse
from enginewright_cli.plan.gather import gather
from enginewright_cli.plan.manifest import Applied, AppliedManifest
from enginewright_cli.plan.result import Forecast, Forecasts
from enginewright_cli.preflight.cache import ResultCache, default_folder, installation
from enginewright_cli.preflight.outfile import write
from enginewright_cli.preflight.stages import InstallationError, running_stages
from enginewright_cli.preflight.stopping import Stopped, stop_on_signals
from enginewright_cli.preflight.tools import probe_installation

INTERRUPTS: Final = (Stopped, KeyboardInterrupt)

_DEFAULT: Final = "default"


def plan(
    manifest: str, namespace: str | None, *, offline: bool, file: Path | None, save: Path | None
) -> Forecasts:
    """Return what applying a manifest, a file or "-", would do.

    The cluster's state is read from `file`, gathered, or with `offline` assumed; `save` gets it. Raises
    CommandError, and OSError if `save` cannot be written.
    """
    read = manifests.read(manifest)
    online = not offline and file is None
    default = namespace or (cluster.current_namespace() if online else _DEFAULT)
    models = [(model.namespace or default, model) for model in read.models]
    if file:
        state = ClusterState.read(file)
    else:
        state = (online and _gather(models)) or _assume(own_classes=bool(read.classes))
    if save is not None:
        write(save, state.to_yaml())
    return Forecasts(
        models=tuple(_one(where, model, read, state) for where, model in models),
        assumed=(*state.assumed, *_list_ignored_classes(read)),
        ignored=read.others,
    )


def _gather(models: list[tuple[str, Applied]]) -> ClusterState | None:
    """Return the cluster's state, or None if no cluster is configured."""
    try:
        return cluster.query(lambda client: gather(client, models))
    except cluster.NoCluster:
        return None
    except cluster.ClusterError as error:
        raise cluster.ClusterError(f"{error}; to plan without a cluster, give --offline") from None


def _assume(*, own_classes: bool) -> ClusterState:
    message = installing.why_no_stages()
    if message:
        raise InstallationError(
            f"what is installed here cannot be probed: {message}; or give --facts FILE"
        )
    try:
        cache = ResultCache(default_folder(), lambda _: None)
        with stop_on_signals() as stop, running_stages() as stages:
            installed = probe_installation(cache, installation(), stages, stop)
    except InstallationError as error:
        raise InstallationError(f"{error}; or give --facts FILE") from None
    return assume_state(installed, own_classes=own_classes)


def _one(where: str, model: Applied, manifest: AppliedManifest, state: ClusterState) -> Forecast:
    live = live_model(state, where, model.name)
    if model.problems:
        return refuse(where, model.name, model.problems, exists=live is not None)
    valid = tuple(device_class for device_class in manifest.classes if not device_class.problems)
    return forecast(facts(model, valid, state, where), live, nodes_known=state.nodes_known)


def _list_ignored_classes(manifest: AppliedManifest) -> list[str]:
    return [
        f"AcceleratorClass {device_class.name} of the manifest is ignored: {'; '.join(device_class.problems)}"
        for device_class in manifest.classes
        if device_class.problems
    ]
