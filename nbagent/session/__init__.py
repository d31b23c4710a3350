"""Options → a plan (client, hosts, composer, sinks) → a run: starts, goes on, forks.

Hands each event to its sinks in order, the store first. It knows no notebook: what the process
offers comes through a `Frontend`.

Inside, imports go: frontend, clients, approval → composer, stores → prepare → active.
"""
