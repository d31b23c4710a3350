"""The ground: pure values and protocols that every room may use. Nothing here does I/O.

Inside, imports go: errors → secrets, canonical → chat → records, policy → events → ports.
"""
