"""What is made of a run: curves, figures, tables."""
