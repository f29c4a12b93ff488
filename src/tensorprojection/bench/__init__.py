"""Speed side by side with what the layer replaces, with its peers and with the machine's limit."""
