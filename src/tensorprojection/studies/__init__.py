"""The paper's section 3: its data, its models and its experiments."""
