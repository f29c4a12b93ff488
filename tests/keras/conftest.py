"""One backend per process: test_backends.py starts the processes."""

collect_ignore = ["suite"]
