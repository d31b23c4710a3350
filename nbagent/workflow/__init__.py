"""Workflows: packages of agents and steps that work on a state document.

Owns the files of a package and their checks, the permitted changes of the document, and the texts
for the model about both. Tools and the notebook are not its business.
"""
