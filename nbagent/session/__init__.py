"""A request and options become a plan, the plan a run: start, resume, fork, stop.

Each event goes to the sinks in order, the store first. This package does not know notebooks: a
`Frontend` provides what the process offers.

Imports inside: frontend, models, approval → chat_composer, stores → inherit → plan → active_run.
"""
