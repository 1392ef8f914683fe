"""Users' libraries with custom operators for ONNX Runtime or plug-ins for TensorRT.

They are in a sibling folder `extensions` of the model's folder, in Jobs, artefacts and serving pods, where
every session finds them by its model's path. A library is code, so its file is named after its digest,
which is checked before each load.
"""
