"""All that knows IPython and Jupyter: how a run is shown, and the magics that start one.

Inside, imports go down: line → complete, template → reports → surface → commands; `magics` imports
of these only line and complete before it is used.
"""
