"""Who trains: executors that take units and give back what happens to them."""
