"""The public classes: `Model` for new code, `InferenceSession` and its companions for code written for onnxruntime.

Both stand on the same compiled model. `model` loads and runs, `inference` adds onnxruntime's calls, `options` holds the
settings and descriptions, `values` and `binding` the explicit values and buffers.
"""
