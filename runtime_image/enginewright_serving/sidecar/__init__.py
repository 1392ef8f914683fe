"""Continuously verifies what a pod serves and reports it to Kubernetes and Prometheus.

It does not trust the server: it compares the server's reports with the manifest, and golden inferences on the
path of clients' requests detect a wrong report. `monitor` polls, `pod_state` derives the verdict, `app` has the
HTTP endpoints, `main` is the process.
"""

import os

# NumPy's BLAS, which is not used here, would start a thread for every core of the node.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
