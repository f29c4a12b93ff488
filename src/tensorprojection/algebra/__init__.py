"""The paper's mathematics: W to U, the multilinear map, and their derivatives of every order."""
