"""All access to the API server: plain dicts in, plain dicts out, errors of our own.

Other packages see the Protocol `KubeApi` and the errors of `kube.errors`, never a client library, an
HTTP code or a retry.
"""
