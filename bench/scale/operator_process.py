"""The operator as a process with the rights and limits that the chart gives it, in the cluster's network."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from bench.scale.control_plane import NAME, SYSTEM, ControlPlane

_PORT: Final = 18080
_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What the process has used since its start."""

    cpu_seconds: float
    rss_mib: float
    peak_mib: float
    requests: Counter[str]  # by verb
    passes: int  # over models

    @property
    def writes(self) -> int:
        """Return how many requests changed something."""
        return sum(count for verb, count in self.requests.items() if verb in _WRITES)

    def since(self, earlier: "Usage") -> "Usage":
        """Return what was used since an earlier time."""
        return Usage(
            self.cpu_seconds - earlier.cpu_seconds,
            self.rss_mib,
            self.peak_mib,
            self.requests - earlier.requests,
            self.passes - earlier.passes,
        )


class Operator:
    """One process at a time, started again by `restart`."""

    def __init__(self, plane: ControlPlane, image: str, fleet: dict[str, Any] | None = None) -> None:
        self._plane = plane
        self.image = image
        self._fleet = fleet or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it with its account's token, as a pod would have it."""
        folder = self._plane.folder / "account"
        folder.mkdir(exist_ok=True)
        token = self._plane.kubectl(
            "create", "token", "enginewright", "--namespace", SYSTEM, "--duration", "24h"
        )
        (folder / "token").write_text(token.strip())
        (folder / "namespace").write_text(SYSTEM)
        document = json.loads(self._plane.kubeconfig.read_text())
        authority = Path(document["clusters"][0]["cluster"]["certificate-authority"])
        (folder / "ca.crt").write_bytes(authority.read_bytes())
        config = {
            "images": {"rtx": self.image},
            "store": {"claim": "enginewright-store", "size": "1Gi", "accessMode": "ReadWriteMany"},
            "httpPort": _PORT,
            "fleet": self._fleet,
        }
        environment = {
            **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
            "KUBERNETES_SERVICE_HOST": "192.0.2.1",
            "KUBERNETES_SERVICE_PORT": "6443",
            "POD_NAMESPACE": SYSTEM,
            "ENGINEWRIGHT_CONFIG": json.dumps(config),
        }
        # a mount namespace of its own, so that the account's files are where a pod has them
        script = (
            f"mount -t tmpfs none /run && mkdir -p {_ACCOUNT} && mount --bind {folder} {_ACCOUNT}"
            f" && exec {sys.executable} -m enginewright.main"
        )
        self._process = self._plane.start(
            ["unshare", "--mount", "sh", "-c", script], "operator.log", environment
        )

    def stop(self) -> None:
        """End it as the kubelet does."""
        assert self._process is not None
        self._plane.end(self._process)

    def usage(self) -> Usage:
        """Return what it has used. Raises OSError while it does not listen."""
        assert self._process is not None
        proc = Path(f"/proc/{self._process.pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        requests: Counter[str] = Counter()
        passes = 0
        for family in text_string_to_metric_families(self._metrics()):
            for sample in family.samples:
                if sample.name == "rest_client_requests_total":
                    requests[sample.labels["method"]] += int(sample.value)
                elif sample.name == "controller_runtime_reconcile_total":
                    passes += int(sample.value)
        return Usage(
            (int(fields[11]) + int(fields[12])) / _TICKS,
            int(status["VmRSS"].split()[0]) / 1024,
            int(status["VmHWM"].split()[0]) / 1024,
            requests,
            passes,
        )

    def cpu_seconds(self) -> float:
        """Return its processor time."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def wait_settled(self, seconds: float, window: float = 3.0) -> float:
        """Wait until nothing is queued and it rests; return when it began to, by the monotonic clock."""
        deadline = time.monotonic() + seconds
        before, since = -1.0, time.monotonic()
        while time.monotonic() < deadline:
            time.sleep(0.5)
            now = self.cpu_seconds()
            if now - before > 0.05 or not self._is_idle():
                since = time.monotonic()
            before = now
            if time.monotonic() - since > window:
                return since
        raise TimeoutError(f"the operator is busy after {seconds:.0f} s")

    def _is_idle(self) -> bool:
        try:
            text = self._metrics()
        except OSError:
            return False
        return not sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in ("workqueue_depth", "workqueue_unfinished_work_seconds")
        )

    def _metrics(self) -> str:
        # its network is another one, so the request is sent by a process there
        code = f"import urllib.request as u;print(u.urlopen('http://127.0.0.1:{_PORT}/metrics',timeout=10).read().decode())"
        command = ["nsenter", f"--net=/run/netns/ew-{NAME}", "--", sys.executable, "-I", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr[-200:])
        return done.stdout
