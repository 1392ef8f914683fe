"""The command: `hack/cluster/cluster VERB`."""

import argparse
import fcntl
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from driver import (
    addons,
    build,
    cleanup,
    controlplane,
    gpus,
    images,
    machine,
    members,
    network,
    node,
)
from driver.errors import ClusterError
from driver.layout import DEFAULT_NAME, DEFAULT_PORT, Cluster, Gpus, Settings
from driver.processes import Processes, run
from driver.progress import say, step, wait_until

_MAX_NODES = 9
_TOOLS = ("kubectl", "helm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 success, 1 failure with a message, 2 wrong usage."""
    given, tool_arguments = split_tool(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    options.tool_arguments = tool_arguments
    try:
        _require_name(options.name)
        if options.root:
            machine.require_linux_root()
        return int(options.verb(Cluster(options.name), options))
    except ClusterError as error:
        say(f"cluster: {error}")
        return 1
    except KeyboardInterrupt:
        say("cluster: interrupted; `up` continues from here, `down` removes everything")
        return 130


def split_tool(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate our own arguments from those passed on to `kubectl` or `helm`."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        index += 2 if arguments[index] == "--name" else 1
    if index < len(arguments) and arguments[index] in _TOOLS:
        return list(arguments[: index + 1]), list(arguments[index + 1 :])
    return list(arguments), []


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]{0,19}", name):
        raise ClusterError(
            f"--name {name!r} is not 1 to 20 lower-case letters and digits that start with a letter; "
            "choose another"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    named = argparse.ArgumentParser(add_help=False)
    for argument_parser, default in ((parser, DEFAULT_NAME), (named, argparse.SUPPRESS)):
        argument_parser.add_argument(
            "--name", default=default, help="several clusters can run side by side"
        )
    parser.set_defaults(root=False)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add = functools.partial(verbs.add_parser, parents=[named])
    up = add("up", help="start the cluster, or restart processes that died")
    up.add_argument(
        "--nodes", type=int, help="number of nodes (default 1); 0: only those that others simulate"
    )
    up.add_argument("--port", type=int, help="port of the API on 127.0.0.1")
    up.add_argument(
        "--gpus", action="append", default=[], metavar="NODE=PRODUCT[/MIG]:COUNT",
        help="simulated devices, e.g. 2=l4:1 or 1=a100-80gb/1g.10gb:7",
    )  # fmt: skip
    up.add_argument(
        "--control-plane-only",
        action="store_true",
        help="only API server and etcd: no controllers, no nodes",
    )
    up.set_defaults(verb=_up, root=True)
    add("down", help="remove everything").set_defaults(verb=_down, root=True)
    add("status", help="list processes").set_defaults(verb=_status)
    add("env", help="print KUBECONFIG and PATH for a shell").set_defaults(verb=_env)
    for name in _TOOLS:
        tool = verbs.add_parser(name, help=f"run {name} against the cluster", add_help=False)
        tool.set_defaults(verb=_tool, tool=name)
    load = add("load", help="import image archives into every node")
    load.add_argument("archives", nargs="+", type=Path)
    load.set_defaults(verb=_load, root=True)
    logs = add("logs", help="print a process's log, or list the processes")
    logs.add_argument("process", nargs="?")
    logs.set_defaults(verb=_logs)
    kill = add("kill", help="kill a process or a node, as a crash would; `up` restarts it")
    kill.add_argument("process", help="name in the output of `status`, or node-N")
    kill.set_defaults(verb=_kill, root=True)
    return parser


@contextmanager
def _lock(cluster: Cluster) -> Iterator[None]:
    """Allow one `up` or `down` at a time."""
    path = Path("/run/lock") / f"{cluster.namespace}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"another command is changing the cluster {cluster.name!r}; wait for it"
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _settings(cluster: Cluster, options: argparse.Namespace, binaries: Path) -> Settings:
    existing = cluster.read_settings()
    devices = gpus.parse_all(options.gpus)
    nodes = 0 if options.control_plane_only else options.nodes
    if nodes is not None and not 0 <= nodes <= _MAX_NODES:
        raise ClusterError(f"--nodes {nodes} is not between 0 and {_MAX_NODES}")
    if existing is None:
        if options.port is None and cluster.name != DEFAULT_NAME:
            port = machine.free_port()
        else:
            port = options.port or DEFAULT_PORT
            machine.require_port(port)
        nodes = 1 if nodes is None else nodes
        for device in devices:
            if not 1 <= device.node <= nodes:
                raise ClusterError(
                    f"--gpus refers to node {device.node} of a cluster of {nodes} nodes"
                )
        return Settings(
            nodes, port, devices, binaries.name, controllers=not options.control_plane_only
        )
    for requested, has, flag in (
        (nodes, existing.nodes, "--nodes"),
        (options.port, existing.port, "--port"),
        (devices or None, existing.gpus, "--gpus"),
    ):
        if requested is not None and requested != has:
            raise ClusterError(
                f"the cluster {cluster.name!r} was created with another {flag}; run `down` first"
            )
    if existing.build != binaries.name and not _runs(cluster, existing):
        raise ClusterError(
            f"the cluster {cluster.name!r} was created by another version of these programs, and "
            "part of it is not running; run `down`, then `up`"
        )
    return existing


def _runs(cluster: Cluster, settings: Settings) -> bool:
    processes = Processes(cluster)
    return all(map(processes.alive, processes.names())) and controlplane.ready(
        cluster, settings.port
    )


def _up(cluster: Cluster, options: argparse.Namespace) -> int:
    with _lock(cluster):
        if cluster.read_settings() is None:
            machine.require_resources()
        binaries = build.binaries()
        settings = _settings(cluster, options, binaries)
        if settings.build != binaries.name:
            say(
                f"cluster {cluster.name!r} is up; it was created by another version of these programs"
            )
            return 0
        machine.install_programs()
        kube = binaries / "kube"
        processes = Processes(cluster)
        cluster.folder.mkdir(parents=True, exist_ok=True)
        cluster.write_settings(settings)
        _link_tools(cluster, kube)
        network.create_hub(cluster)
        for item in cluster.nodes(settings):
            network.create_node(item, settings.nodes)
        with step("control plane"):
            controlplane.create_credentials(cluster, kube, settings)
            controlplane.start(cluster, kube, settings, processes)
        if settings.controllers:
            controlplane.start_controllers(cluster, kube, processes)
        if settings.nodes:
            _up_nodes(cluster, binaries, settings, processes)
    say(
        f'cluster {cluster.name!r} is up; eval "$(hack/cluster/cluster --name {cluster.name} env)" to use it'
    )
    return 0


def _up_nodes(cluster: Cluster, binaries: Path, settings: Settings, processes: Processes) -> None:
    kube = binaries / "kube"
    nodes = cluster.nodes(settings)
    with step(f"{len(nodes)} node(s)"):
        for item in nodes:
            node.start_namespace(item, binaries / "pause", processes)
            node.start_containerd(item, processes)
        addons.load_images(cluster, binaries, settings)
        for item in nodes:
            devices = [gpu for gpu in settings.gpus if gpu.node == item.index]
            node.start_kubelet(item, kube, devices, processes)
        addons.apply(cluster, kube)
        controlplane.start_metrics(cluster, kube, processes)
        names = {f"node/{item.name}" for item in nodes}

        def are_registered() -> bool:
            return names <= {*_kubectl(cluster, "get", "nodes", "--output", "name").split()}

        wait_until("the nodes' registration", are_registered, 60, "see `logs kubelet-1`")
        _kubectl(cluster, "wait", "--for=condition=Ready", "--timeout=90s", *names)
        for gpu in settings.gpus:
            wait_until(
                f"the registration of {gpus.resource(gpu)} on node {gpu.node}",
                functools.partial(_offers, cluster, gpu),
                60,
                f"see `logs device-plugin-{gpu.node}`",
            )
    with step("DNS and metrics"):
        _kubectl(
            cluster, "--namespace", "kube-system", "rollout", "status", "--timeout=90s", "deployment/coredns"
        )  # fmt: skip
        _kubectl(cluster, "wait", "--for=condition=Available", "--timeout=60s", addons.METRICS_API)


def _offers(cluster: Cluster, gpu: Gpus) -> bool:
    path = "jsonpath={.status.allocatable}"
    offered = _kubectl(cluster, "get", "node", cluster.node(gpu.node).name, "--output", path)
    return bool(json.loads(offered or "{}").get(gpus.resource(gpu)) == str(gpu.count))


def _link_tools(cluster: Cluster, kube: Path) -> None:
    cluster.bin.mkdir(parents=True, exist_ok=True)
    for name in ("kubectl", "helm"):
        link = cluster.bin / name
        if not (link.is_symlink() and os.readlink(link) == str(kube)):
            link.unlink(missing_ok=True)
            link.symlink_to(kube)


def _kubectl(cluster: Cluster, *arguments: str) -> str:
    return run(cluster.bin / "kubectl", "--kubeconfig", cluster.kubeconfig, *arguments)


def _require(cluster: Cluster) -> Settings:
    settings = cluster.read_settings()
    if settings is None:
        raise ClusterError(f"the cluster {cluster.name!r} does not exist; run `up` first")
    return settings


def _down(cluster: Cluster, _: argparse.Namespace) -> int:
    with _lock(cluster):
        if not cleanup.leftovers(cluster):
            say(f"the cluster {cluster.name!r} does not exist")
            return 0
        with step(f"removing cluster {cluster.name!r}"):
            cleanup.remove(cluster)
    return 0


def _status(cluster: Cluster, _: argparse.Namespace) -> int:
    settings = _require(cluster)
    processes = Processes(cluster)
    dead = 0
    for name in processes.names():
        alive = processes.alive(name)
        dead += not alive
        print(f"{name:28} {'running' if alive else 'NOT running'}")
    answers = controlplane.ready(cluster, settings.port)
    print(f"{'API on 127.0.0.1:' + str(settings.port):28} {'ready' if answers else 'NOT ready'}")
    return 0 if answers and not dead else 1


def _env(cluster: Cluster, _: argparse.Namespace) -> int:
    _require(cluster)
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f'export PATH="{cluster.bin}:$PATH"')
    return 0


def _tool(cluster: Cluster, options: argparse.Namespace) -> int:
    environment = dict(os.environ)
    if cluster.kubeconfig.exists():
        environment["KUBECONFIG"] = str(cluster.kubeconfig)
    elif options.tool == "kubectl":
        _require(cluster)  # helm can also lint and render without a cluster
    # a running cluster has its own program: changed sources need no build
    program = cluster.bin / options.tool
    command = [program] if program.exists() else [build.binaries() / "kube", options.tool]
    return subprocess.call([*command, *options.tool_arguments], env=environment)


def _load(cluster: Cluster, options: argparse.Namespace) -> int:
    settings = _require(cluster)
    for archive in options.archives:
        if not archive.exists():
            raise ClusterError(f"{archive} does not exist")
    nodes = cluster.nodes(settings)
    for archive in options.archives:
        with step(f"{archive.name} into {len(nodes)} node(s)"):
            for item in nodes:
                images.load(item, archive, loaded=nodes[0] if item != nodes[0] else None)
    return 0


def _find(cluster: Cluster, process: str) -> Processes:
    _require(cluster)
    processes = Processes(cluster)
    if process not in processes.names():
        raise ClusterError(
            f"unknown process {process!r}; choose one of {', '.join(processes.names())}"
        )
    return processes


def _logs(cluster: Cluster, options: argparse.Namespace) -> int:
    if options.process is None:
        _require(cluster)
        print("\n".join(Processes(cluster).names()))
        return 0
    with _find(cluster, options.process).log(options.process).open("rb") as log:
        sys.stdout.buffer.write(log.read())
    return 0


def _kill(cluster: Cluster, options: argparse.Namespace) -> int:
    nodes = {item.name: item for item in cluster.nodes(_require(cluster))}
    if options.process in nodes:
        members.end_node(nodes[options.process])
    else:
        _find(cluster, options.process).kill(options.process)
    return 0
