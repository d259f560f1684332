"""Trusted code that runs next to untrusted code. Standard library only, Python 3.8 or newer, no import from above.

Inside a sandbox this folder is mounted read-only as the package ``repairgym_guest``; the host imports it in place.
"""
