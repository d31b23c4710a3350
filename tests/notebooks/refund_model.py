"""The models of notebooks/lab.ipynb: what they would say, made by a program that asks nobody.

Two models and three system prompts that differ as real ones do: the small model slips more often,
words stand around the number where nothing forbids it, and other currencies are converted by heart
where nothing says to use the tool. An answer follows from the request alone.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
from pathlib import Path

from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import ChatRequest, ChatResponse, FinishReason, Usage

TABLE = Path(__file__).parents[2] / "notebooks" / "refunds.csv"
_RATES = {"USD": 0.92, "GBP": 1.17, "CHF": 1.05, "SEK": 0.088, "JPY": 0.0061}
_SYMBOLS = {"USD": "$", "GBP": "£", "JPY": "¥"}
_MISREAD = {
    "m03": 24.5,
    "m05": 240,
    "m10": 15.8,
    "m11": 60,
    "m18": 85,
    "m21": 45,
    "m22": 228,
    "m23": 352,
    "m25": 9.99,
    "m28": 70,
    "m29": 580,
    "m36": 14.2,
    "m37": 9999,
    "m38": 40,
    "m39": 128,
    "m43": 33,
    "m44": 66,
    "m49": 50,
    "m50": 189,
    "m51": 280,
    "m53": 59,
    "m56": 14,
}
"""Amounts that a careless reader finds, in the currency of the message."""
_CALLS = {"v1": (0.4, 0.6), "v2": (0.5, 0.75), "v3": (0.97, 1.0)}
"""How often the small and the large model call the tool for another currency."""
_MISREADS = {"v1": (0.35, 0.15), "v2": (0.35, 0.12), "v3": (0.28, 0.08)}
"""How often they take the wrong amount where there are two."""
_SENTENCES = (
    "The customer wants €{} back.",
    "The refund is **{} €**.",
    "{} euros should be refunded.",
    "That comes to about €{}.",
)
_BLOCKED = "m41"
"""A threat: the large model's provider filters its answers."""


def answer(request: ChatRequest) -> ChatResponse:
    """Answer a request as the model."""
    system, prompt = request.system_prompt, _text(request, "user")
    if "careful judge" in system:
        return _made(request, _judged(prompt))
    row = next(row for row in _rows() if row["message"] in prompt)
    if "Write a reply" in prompt:
        return _made(request, _reply(row, is_small=_is_small(request)))
    return _amount(request, row, _chance(request.model, system, prompt))


def _amount(request: ChatRequest, row: dict[str, str], chance: random.Random) -> ChatResponse:
    """A refund's amount, or the call of the tool before it."""
    small, system = _is_small(request), request.system_prompt
    prompt = "v3" if "by heart" in system else "v2" if "two decimals" in system else "v1"
    if row["id"] == _BLOCKED and not small:
        return _made(request, "", finish="content_filter")
    currency, key = row["currency"], row["id"]
    right = float(row["expected"]) / _RATES.get(currency, 1)
    # What a model misreads it misreads with each prompt, or nearly so.
    careless = _chance(request.model, key).random() < _MISREADS[prompt][not small]
    amount = round(_MISREAD[key] if careless and key in _MISREAD else right, 2)
    foreign = currency != "EUR"
    likely = _CALLS[prompt][not small] if foreign else (0.15 if small and prompt == "v3" else 0)
    calls, odd = chance.random() < likely, chance.random() < (0.45 if small else 0.1)
    guess = amount * _RATES.get(currency, 1) * (1 + chance.choice((-1, 1)) * _slip(chance, small))
    results = [m.text for m in request.messages if m.role == "tool"]
    converted = re.search(r'"data":([\d.]+)', results[-1]) if results else None
    if calls and not results:
        name = _SYMBOLS.get(currency, currency) if odd else currency
        return _called(request, amount, name)
    if results and not converted and odd and len(results) == 1 and currency in _SYMBOLS:
        return _called(request, amount, currency)
    euros = float(converted[1]) if converted else guess if foreign else amount
    if results and not converted and small:
        return _made(request, "I cannot convert this amount.")
    return _made(request, _said(euros, prompt, chance, small=small), thought=0 if small else 48)


def _slip(chance: random.Random, small: bool) -> float:
    """By how much a rate is off that is known by heart."""
    return chance.uniform(0.01, 0.05) if small else chance.uniform(0.002, 0.02)


def _said(euros: float, prompt: str, chance: random.Random, *, small: bool) -> str:
    """The amount in the model's words."""
    text = f"{euros:.2f}"
    if prompt == "v1":
        wordy = chance.random() < (0.85 if small else 0.7)
        return chance.choice(_SENTENCES).format(text) if wordy else text
    if chance.random() < (0.08 if small else 0.01):
        return chance.choice([f"{text} €", text.replace(".", ",")])
    return text


def _reply(row: dict[str, str], *, is_small: bool) -> str:
    """A letter to the customer; the small model's have their flaws."""
    euros = f"{float(row['expected']):.2f} €"
    flawed = {
        "m02": f"We are so sorry! {euros} are on the way, and a voucher of 20 € on top.",
        "m04": f"{euros} are on the way. Please check the switch next time.",
        "m05": "We are sorry for the trouble. Your refund is on the way.",
        "m11": "We are sorry about the glasses. You will hear from us.",
        "m14": f"We are sorry. {euros} are on the way, and your next month is free.",
        "m17": f"{euros} are on the way. Pans rust if nobody dries them.",
        "m23": f"We are sorry! {euros} are on the way, and a voucher of 10 €.",
        "m26": f"{euros} are on the way. Please keep your phone away from your daughter.",
    }
    kind = f"We are sorry for the trouble with your order. {euros} are on the way to you."
    return flawed.get(row["id"], kind) if is_small else kind


def _judged(prompt: str) -> str:
    """A judge's verdict on a reply."""
    said = prompt.rpartition("<<< answer ")[2].partition("\n")[2].rpartition("\n")[0]
    said = said.split("\n")[0]
    if "voucher" in said:
        reason, ok = "It promises a voucher that nobody granted.", False
    elif not re.search(r"\d", said):
        reason, ok = "It does not name the amount.", False
    else:
        reason, ok = "It is friendly, names the amount and promises nothing else.", True
    return json.dumps({"reason": reason, "ok": ok})


def _called(request: ChatRequest, amount: float, currency: str) -> ChatResponse:
    raw = json.dumps({"amount": amount, "currency": currency}, ensure_ascii=False)
    n = sum(len(message.tool_calls) for message in request.messages)
    call = ToolCall(id=f"call_{_sha(request.model, raw)[:8]}{n}", name="convert", arguments_raw=raw)
    parsed = call.model_copy(update={"arguments": json.loads(raw)})
    made = Message(role="assistant", tool_calls=(parsed,))
    return _response(request, made, "tool_calls", 22)


def _made(
    request: ChatRequest, text: str, *, finish: FinishReason = "stop", thought: int = 0
) -> ChatResponse:
    made = Message.of("assistant", text)
    return _response(request, made, finish, 2 + len(text) // 4 + thought, thought)


def _response(
    request: ChatRequest, made: Message, finish: FinishReason, said: int, thought: int = 0
) -> ChatResponse:
    tools = sum(len(json.dumps(tool.parameters)) + len(tool.description) for tool in request.tools)
    words = sum(len(m.text) + 60 * len(m.tool_calls) for m in request.messages)
    usage = Usage.of((len(request.system_prompt) + tools + words) // 4, said, reasoning=thought)
    served = f"{request.model}-2026-03-05"
    return ChatResponse(message=made, usage=usage, model=served, finish_reason=finish)


def _is_small(request: ChatRequest) -> bool:
    return request.model.endswith("mini")


def _text(request: ChatRequest, role: str) -> str:
    return "\n".join(m.text for m in request.messages if m.role == role)


def _rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _chance(*facts: str) -> random.Random:
    return random.Random(_sha(*facts))


def _sha(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()
