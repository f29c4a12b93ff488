"""The layers: plain modules that hold W."""
