"""Time zones that a prompt speaks of: by their IANA names, or by a well-known city or country.

Owns the table. Which parameter wants a zone is `arguments`' question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_AREAS = "Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc"
_ZONE = re.compile(rf"\b(?:{_AREAS})/[A-Za-z_+-]+\d*(?:/[A-Za-z_]+)?|\b(?:UTC|GMT)\b(?![+-])")
_PLACES = {
    "Africa": "Accra Algiers Cairo Casablanca Johannesburg Lagos Nairobi Tunis",
    "America": "Bogota Caracas Chicago Denver Halifax Havana Lima Los_Angeles Mexico_City Montreal"
    " New_York Panama Phoenix Santiago Sao_Paulo Toronto Vancouver",
    "Asia": "Baghdad Bangkok Beirut Dhaka Dubai Hong_Kong Jakarta Jerusalem Karachi Kathmandu"
    " Kolkata Kuala_Lumpur Manila Riyadh Seoul Shanghai Singapore Taipei Tashkent Tehran Tokyo",
    "Atlantic": "Azores Reykjavik",
    "Australia": "Adelaide Brisbane Darwin Melbourne Perth Sydney",
    "Europe": "Amsterdam Athens Belgrade Berlin Brussels Bucharest Budapest Copenhagen Dublin"
    " Helsinki Istanbul Kyiv Lisbon London Luxembourg Madrid Moscow Oslo Paris Prague Riga Rome"
    " Sofia Stockholm Tallinn Vienna Vilnius Warsaw Zagreb Zurich",
    "Pacific": "Auckland Fiji Honolulu",
}
_OTHER_NAMES = {
    "bergen": "Europe/Oslo",
    "trondheim": "Europe/Oslo",
    "norway": "Europe/Oslo",
    "sweden": "Europe/Stockholm",
    "denmark": "Europe/Copenhagen",
    "finland": "Europe/Helsinki",
    "france": "Europe/Paris",
    "germany": "Europe/Berlin",
    "munich": "Europe/Berlin",
    "hamburg": "Europe/Berlin",
    "frankfurt": "Europe/Berlin",
    "italy": "Europe/Rome",
    "milan": "Europe/Rome",
    "spain": "Europe/Madrid",
    "barcelona": "Europe/Madrid",
    "england": "Europe/London",
    "edinburgh": "Europe/London",
    "geneva": "Europe/Zurich",
    "switzerland": "Europe/Zurich",
    "iceland": "Atlantic/Reykjavik",
    "japan": "Asia/Tokyo",
    "kyoto": "Asia/Tokyo",
    "osaka": "Asia/Tokyo",
    "china": "Asia/Shanghai",
    "beijing": "Asia/Shanghai",
    "india": "Asia/Kolkata",
    "mumbai": "Asia/Kolkata",
    "delhi": "Asia/Kolkata",
    "new delhi": "Asia/Kolkata",
    "bangalore": "Asia/Kolkata",
    "boston": "America/New_York",
    "washington": "America/New_York",
    "miami": "America/New_York",
    "san francisco": "America/Los_Angeles",
    "seattle": "America/Los_Angeles",
    "california": "America/Los_Angeles",
    "dallas": "America/Chicago",
    "houston": "America/Chicago",
    "são paulo": "America/Sao_Paulo",
    "buenos aires": "America/Argentina/Buenos_Aires",
    "cape town": "Africa/Johannesburg",
    "new zealand": "Pacific/Auckland",
    "hawaii": "Pacific/Honolulu",
}
_BY_NAME = _OTHER_NAMES | {
    place.replace("_", " ").lower(): f"{area}/{place}"
    for area, places in _PLACES.items()
    for place in places.split()
}
_NAMES = re.compile(
    r"(?<![\w/])(?:" + "|".join(sorted(map(re.escape, _BY_NAME), key=len, reverse=True)) + r")\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone and where the prompt speaks of it."""

    name: str
    start: int
    end: int
    before: str
    """The word before it."""


def zones(prompt: str) -> list[Zone]:
    """The zones of a prompt, in order, each once."""
    prompt = prompt[:8_000]
    exact = [(one.span(), one.group()) for one in _ZONE.finditer(prompt)]
    taken = [span for span, _ in exact]
    for one in _NAMES.finditer(prompt):
        if not any(one.start() < end and start < one.end() for start, end in taken):
            exact.append((one.span(), _BY_NAME[one.group().lower()]))
    unique: dict[str, Zone] = {}
    for (start, end), name in sorted(exact):
        leading = re.findall(r"[^\W\d_]+", prompt[max(start - 30, 0) : start].lower())
        name = "Etc/UTC" if name in ("UTC", "GMT") else name
        unique.setdefault(name, Zone(name, start, end, leading[-1] if leading else ""))
    return list(unique.values())
