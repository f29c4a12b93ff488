"""The report of a run: page, figures, tables and verdicts."""
