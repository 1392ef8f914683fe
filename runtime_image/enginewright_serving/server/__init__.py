"""Serves one model over HTTP and gRPC with the Open Inference Protocol v2; verifies it before it is ready.

No web framework, to keep the overhead per request small compared with the model itself. `main` is the process,
`endpoints` its ports, `api` what they serve, `startup` loading and verification, `inference` the queue and the
model's threads.
"""
