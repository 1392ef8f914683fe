"""Users' libraries with custom operators for ONNX Runtime or plug-ins for TensorRT.

They are in a sibling folder `extensions` of the model's folder: in the work folder of a Job, in an
artefact, in a serving pod. So every session finds them by its model's path. Since a library is code,
its file is named after its digest, which is checked before each load.
"""
