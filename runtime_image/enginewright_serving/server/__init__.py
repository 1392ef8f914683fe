"""Serves one model over HTTP with the Open Inference Protocol v2; verifies it before it is ready.

No web framework, to keep the overhead per request small compared with the model itself.
`connection` implements HTTP, `decode` and `encode` the bodies, `worker` the session's thread, `app`
the routes, `startup` loading and verification, `main` the process.
"""
