"""Kernels in C for what torch's operations are slow at: small modes, and small W's, on a CPU.

Optional: where they were not built, everything is done by torch's own operations.
"""
