"""Libraries of users, with operators that ONNX Runtime or TensorRT does not have.

They lie in a folder `extensions` beside the folder of the model, wherever that is: in the work
folder of a Job, in an artefact, in a serving pod. So every session finds them by its model's path.
A library is code: its digest is its file's name, and is checked before each load.
"""
