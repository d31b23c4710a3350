"""Touching the disk safely: mounts, opening, writing, patching, front matter, searching.

Owns the way from a name that a model wrote to bytes of a file. Who may do what is not its matter.
"""
