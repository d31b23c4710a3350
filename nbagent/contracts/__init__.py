"""Pure values and protocols that every package may import. Nothing here does I/O.

Imports inside go one way: secrets → errors, canonical → messages, limits → model → records,
policy → approval → tools, events → ports.
"""
