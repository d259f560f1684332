"""Predictions of the SWE-bench family: read, applied, graded in processes, reported."""
