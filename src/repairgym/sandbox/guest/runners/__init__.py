"""The runners of tests inside a sandbox: pytest and unittest, their records, and the supervisor of their process."""

NODE_RUNNERS = ("tape", "mocha", "node_test", "vitest", "jest")
"""Runners whose tests are processes of node."""
