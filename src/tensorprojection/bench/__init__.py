"""The layer's speed beside what it replaces, other libraries' layers and the machine's limit."""
