"""Executors: they train jobs in processes of this machine, or on a Ray cluster."""
