"""Runs scripts in isolation: processes, confinement and limits.

`tools.skills` decides which script runs.
"""
