"""The two differentiable maps behind `functional`: W to U, and the multilinear map of x."""
