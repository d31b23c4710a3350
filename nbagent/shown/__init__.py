"""Converts Python values to message parts within a budget: text, JSON, a table, an image."""
