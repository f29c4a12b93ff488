"""Multilinear PCA, the layer's unsupervised counterpart, and starts and shapes from data."""
