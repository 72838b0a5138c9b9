"""The operator library: kernels as tile programs, each with its NumPy meaning."""
