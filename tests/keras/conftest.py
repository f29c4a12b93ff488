"""The suite knows one backend for each process: test_backends.py starts them."""

collect_ignore = ["suite"]
