"""A Python value as parts within a budget: text, JSON, a table, an image."""
