"""Workflows: packages of agents and steps that drive a document of state.

Which files there are and whether they are in order, what the document may become, and what a model
is told of both. Knows no store, no tool and no notebook.
"""
