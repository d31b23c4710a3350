"""A run as a picture: a tree of nodes, printed as HTML, as text, or built in the page.

Knows no IPython and no session.
"""
