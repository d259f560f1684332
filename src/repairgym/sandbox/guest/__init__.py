"""Trusted code that runs beside untrusted code. Standard library only, Python 3.8 or newer, no import from above.

Inside a sandbox this folder is mounted read-only as the package ``repairgym_guest``; on the host it is imported in place.
"""
