"""nbagent: run an agent in a notebook cell, watch every turn, keep every turn as data."""

__version__ = "0.1.0"
