"""Source of small tools, for cells of notebooks and for modules beside a program."""

AREA = """
@nbagent.tool
def area(city: str) -> float:
    "Area of a city in square kilometres."
    return 454.1
"""
KEEP = """
@nbagent.tool
def keep(text: str) -> str:
    "Keep a text."
    return "kept " + text
"""
