"""Safe access to the disk: mounts, opening, writing, patching, front matter, searching.

Owns the way from a name that a model wrote to the bytes of a file. Policies are elsewhere.
"""
