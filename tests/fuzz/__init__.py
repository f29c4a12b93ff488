"""Random layers on random tensors, against float64: short in the tests, long by ``make fuzz``."""
