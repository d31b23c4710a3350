"""Batch APIs of providers: many requests sent at once, answered within a day, at a lower price.

A server's row has an `offer` if it has one. `batch_api` is what every vendor's form does, and one
file a vendor does it. Building requests and reading answers stays with the client and its wires.
"""
