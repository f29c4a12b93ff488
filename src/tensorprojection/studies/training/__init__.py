"""One network of one trial: what it is, how it is trained, and what is kept of it."""
