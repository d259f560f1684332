"""Code that runs inside a build's sandbox, on the task's Python."""
