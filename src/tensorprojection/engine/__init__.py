"""How a layer is carried out: values only, no autograd; by torch, by C kernels, by products."""
