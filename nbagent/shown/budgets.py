"""How much of a value is shown: one budget for each kind, all in one place. Only constants.

A text says in its middle what was left out; a list, an object and a table say it in their place.
"""

from __future__ import annotations

BUDGET_CHARS = 4_000
"""Of one value as text, where the caller names no budget of its own."""
PROMPT_CHARS = 20_000
"""Of one `{{ expression }}` in a prompt that is no text."""
PROMPT_TEXT_CHARS = 1_000_000
"""Of one `{{ expression }}` that is a text: a document is sent whole."""
PATIENCE_S = 2.0
"""For all items of one value: after it the others are left out. One item's own `repr` cannot be
cut short; it runs where a stop or an interrupt reaches it."""

DEEPEST = 60
"""Levels of lists and objects."""
LARGEST_INT_BITS = 4_096
"""Beyond this Python refuses to print an integer sooner or later (4,300 digits)."""
SORTED_ITEMS = 1_000_000
"""A larger set is shown in the order in which it comes."""
BYTES_SHOWN = 7
"""Of binary data, in hexadecimal: fewer than any secret has, which no filter would know so."""

MOST_COLUMNS = 40
"""Of a table; two thirds from the left, one third from the right."""
CELL_CHARS = 200
"""Of one cell of a table, or of one element of an array of objects."""
ARRAY_ITEM_CHARS = 8
"""An array is printed whole when so many characters an element fit the budget."""

IMAGE_SIDE_PX = 1_568
"""Longest side; models scale larger images down to about this."""
IMAGE_BYTES = 1_500_000
"""Of one image; a larger one is made smaller."""
MOST_IMAGES = 8
"""Of one value; the others are named."""
