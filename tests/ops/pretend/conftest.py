"""Only in a process of their own: see Note [A process of its own] in accelerator.py."""

import os

collect_ignore_glob = [] if os.environ.get("TENSORPROJECTION_PRETEND") else ["*.py"]
