"""Keeps proving what a pod serves, beside its server, and says so to Kubernetes and Prometheus.

It believes nothing that it can test: what the server reports of itself is compared with the manifest,
and golden inferences over the path that requests take find out a server that reports wrongly.
`monitor` polls, `pod_state` judges, `checks` keeps for how long a result counts, `readiness` decides,
`metrics` shows, `app` answers, `main` is the process.
"""

import os

# NumPy's BLAS, which nothing here calls, would start a thread for every core of the node.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
