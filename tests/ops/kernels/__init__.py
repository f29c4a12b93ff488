"""A package, because conftest.py and test_polar.py have namesakes in the folder above."""
