"""Serves one model over HTTP with the Open Inference Protocol v2 and proves it before it is ready.

No framework: request parsing, queueing and compute cost little more than the model itself only when
nothing generic lies between the socket and the session. `connection` knows HTTP, `decode` and
`encode` the bodies, `worker` the session's thread, `app` what answers what, `startup` the proofs,
`main` the process.
"""
