"""What is kept of a run beside its rows: what was observed on the way, and the networks."""
