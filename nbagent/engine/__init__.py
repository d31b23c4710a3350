"""The loop *model → tool calls → results → model*, reported as events to a port.

It imports contracts only: clients, hosts, approvers and the store come through ports.
Imports inside go one way: plan → overflow, model_call → limits, tool_calls → turn → loop.
"""

from nbagent.engine.loop import first_request, run_engine
from nbagent.engine.plan import EnginePlan

__all__ = ["EnginePlan", "first_request", "run_engine"]
