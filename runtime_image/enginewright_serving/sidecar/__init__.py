"""Continuously verifies what a pod serves and reports it to Kubernetes and Prometheus.

It does not trust the server: its reports are compared with the manifest, and golden inferences on
the same path as clients' requests detect a server that reports wrongly. `monitor` polls, `pod_state`
derives the verdict, `checks` expires results, `readiness` decides, `metrics` exposes, `app` has the
HTTP endpoints, `main` is the process.
"""

import os

# NumPy's BLAS, which is not used here, would start a thread for every core of the node.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
