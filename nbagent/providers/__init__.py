"""Talking to models: base → http → the adapters; wire names and prices. Runs no tool, keeps no run.

Every module here that defines `PROVIDER` is a provider under its file's name.
"""
