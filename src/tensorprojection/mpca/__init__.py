"""Multilinear PCA, and output shapes and initializations from data."""
