"""Executors: they train units, and report what happens to them."""
