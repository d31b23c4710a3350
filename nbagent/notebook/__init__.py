"""Everything that knows IPython and Jupyter: the views of runs, and the magics that start runs.

Imports go down: line → complete → reports → commands. `magics` imports only `line` and `complete`
before it is used, so that loading the extension stays fast.
"""
