"""The suite knows one backend for each process: test_backends.py starts them."""

collect_ignore_glob = ["suite/*"]
