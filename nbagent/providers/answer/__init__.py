"""One answer while it arrives: from frames to text, reasoning, calls, usage and the response."""
