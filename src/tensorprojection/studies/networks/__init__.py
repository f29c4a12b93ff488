"""The networks of the paper's section 3."""
