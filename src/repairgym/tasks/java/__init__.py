"""Builds of Java libraries: their settings, the check of what they make, and the edits that break them."""
