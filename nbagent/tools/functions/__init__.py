"""Python functions as tools: definition, arguments, running and outcome."""
