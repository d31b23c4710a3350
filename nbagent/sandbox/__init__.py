"""Running a script apart: `script` runs one, and says how far apart that is.

Owns processes, confinement and limits. Where scripts come from is `tools.skills`'.
"""
