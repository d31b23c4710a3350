"""Tool hosts: the sources that list tools for a model and run its calls.

Each host is one module here and implements `contracts.ports.ToolHost`; `hosts` joins them.
"""
