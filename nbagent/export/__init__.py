"""Exports a run as a file for people and other programs. Takes records, never `Run`."""
