"""One picture per file, each with a function `draw()` that returns a matplotlib figure."""
