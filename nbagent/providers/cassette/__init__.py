"""Recorded answers: the file and the client that answers from it."""
