"""The operator library: kernels as tile programs, each with its NumPy meaning.

Evidence, benchmarks and tests use it, and whoever writes kernels by hand. The kernels of an ONNX model do not come from
here: lowering builds their programs from fused groups of nodes (`lower/kernel.py`).
"""
