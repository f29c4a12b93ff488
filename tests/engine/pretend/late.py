"""Copies to the host that take their time."""

from collections import Counter

from accelerator import host


class Late:
    """Copies that arrive when the test says so."""

    def __init__(self):
        self.arrived = False
        self.started = Counter()

    def start(self, norms):
        self.started["copies"] += 1
        self._numbers = [x for norm in norms for x in host(norm).flatten().tolist()]
        return self

    def ready(self):
        return self.arrived

    def numbers(self):
        return self._numbers
