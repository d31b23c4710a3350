"""Refunds: the agent with its tool, three prompts, and a scorer, for lab.ipynb and gate.py."""

import re

import nbagent

RATES = {"EUR": 1, "USD": 0.92, "GBP": 1.17, "CHF": 1.05, "SEK": 0.088}


@nbagent.tool(threaded=True)  # it may run in worker threads, several calls at once
def convert(amount: float, currency: str) -> float:
    """An amount in euros.

    Args:
        amount: The amount.
        currency: Its currency, such as USD.
    """
    if currency not in RATES:
        raise ValueError(f"no rate for {currency!r}")
    return round(amount * RATES[currency], 2)


V1 = "You work in customer service. Say how much money the customer wants back, in euros."
V2 = f"{V1} Answer with the amount only, with two decimals, such as 12.50: no words, no currency."
V3 = f"{V2} Convert other currencies with the tool, never by heart."

agent = nbagent.Agent(tools=[convert])


@nbagent.scorer
def exact(row, run):
    """True if the last number of the answer is the expected amount."""
    numbers = re.findall(r"\d+[.,]?\d*", run.text)
    return bool(numbers) and abs(float(numbers[-1].replace(",", ".")) - row.expected) < 0.01
