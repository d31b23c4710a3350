"""One answer while it arrives: from frames to text, reasoning, calls, usage and the response.

`stream_reader` splits bytes into frames, a wire's parser makes `wire_deltas` of them, and
`answer_pipe` the deltas of the answer. The parsers read with `json_fields` (one value),
`vendor_words` (the same fact under many names), `content_parts` (a message's content),
`finish_words` and `images`; `vendor_fields` keeps the fields that nobody reads.
"""
