"""The one door to the API server: plain dicts in, plain dicts out, errors of our own.

Everything above this package sees the Protocol `KubeApi` and the errors of `kube.errors`, never a
client library, an HTTP code or a retry.
"""
