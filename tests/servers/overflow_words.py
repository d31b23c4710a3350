"""How servers say that a request is too long for the model, and what sounds like it and is not.

From documentation and issues of the servers; the numbers are those that stand in the words.
"""

from __future__ import annotations

OVERFLOWS: dict[str, tuple[int | None, int | None, str]] = {
    "OpenAI": (10_232, 8_192, "This model's maximum context length is 8192 tokens. However, your "
        "messages resulted in 10232 tokens. Please reduce the length of the messages."),
    "OpenAI, completions": (4_162, 4_097, "This model's maximum context length is 4097 tokens, "
        "however you requested 4162 tokens. Please reduce your prompt; or completion length."),
    "OpenAI Responses": (None, None, "Your input exceeds the context window of this model. Please "
        "adjust your input and try again."),
    "OpenAI, a message": (None, None, "Invalid 'messages[3].content': string too long. Expected a "
        "string with maximum length 1048576, but got a string with length 2000000 instead."),
    "DeepSeek": (69_000, 65_536, "This model's maximum context length is 65536 tokens. However, "
        "you requested 69648 tokens (69000 in the messages, 648 in the completion)."),
    "Azure": (300_000, 272_000, "Input tokens exceed the configured limit of 272000 tokens. Your "
        "messages resulted in 300,000 tokens. Please reduce the length of the messages."),
    "GitHub Models": (None, 8_000, "Request body too large for gpt-4o model. Max size: 8000 "
        "tokens."),
    "GitHub Copilot": (145_000, 128_000, "prompt token count of 145000 exceeds the limit of "
        "128000"),
    "Anthropic": (213_462, 200_000, "prompt is too long: 213462 tokens > 200000 maximum"),
    "Anthropic, with the answer": (199_759, 200_000, "input length and `max_tokens` exceed "
        "context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try "
        "again"),
    "Gemini": (1_196_265, 1_048_575, "The input token count (1196265) exceeds the maximum number "
        "of tokens allowed (1048575)."),
    "Gemini, shorter": (None, 1_048_576, "The input token count exceeds the maximum number of "
        "tokens allowed 1048576."),
    "Vertex": (40_000, 32_768, "Unable to submit request because the input token count is 40000 "
        "but model only supports up to 32768. Reduce the input token count and try again."),
    "Mistral": (40_000, 32_768, "Prompt contains 40000 tokens and 0 draft tokens, too large for "
        "model with 32768 maximum context length"),
    "xAI": (537_812, 131_072, "This model's maximum prompt length is 131072 but the request "
        "contains 537812 tokens."),
    "Groq": (None, None, "Please reduce the length of the messages or completion."),
    "Cerebras": (10_187, 8_192, "Please reduce the length of the messages or completion. Current "
        "length is 10187 while limit is 8192"),
    "Cohere": (5_000, 4_081, "too many tokens: total number of tokens in the prompt cannot "
        "exceed 4081 - received 5000."),
    "Cohere, no size": (None, 4_081, "too many tokens: total number of tokens in the prompt cannot "
        "exceed 4081"),
    "Cohere, by how much": (None, 128_000, "too many tokens: size limit exceeded by 11326 tokens. "
        "Try using shorter or fewer inputs. The limit for this model is 128000 tokens."),
    "Moonshot": (9_000, 8_192, "Invalid request: Your request exceeded model token limit: 8192 "
        "(requested: 9000)"),
    "MiniMax": (None, None, "invalid params, context window exceeds limit (2013)"),
    "Z.AI": (130_000, 128_000, "The prompt is too long: 130000, model maximum context length: "
        "128000"),
    "Z.AI, in Chinese": (None, None, "Prompt 超长"),
    "a Chinese gateway": (None, None, "输入内容的长度超过了模型的上限"),
    "DashScope": (None, 30_720, "Range of input length should be [1, 30720]"),
    "DashScope, with its name": (None, 202_745, "<400> InternalError.Algo.InvalidParameter: Range "
        "of input length should be [1, 202745]"),
    "Doubao": (None, None, "Total tokens of image and text exceed max message tokens."),
    "Doubao, sizes": (130_000, 98_304, "Input length 130000 exceeds the maximum input length "
        "98304"),
    "Poolside": (265_330, 262_144, "Input length 265330 exceeds the maximum allowed input length "
        "of 262144 tokens."),
    "SiliconFlow": (172_191, 131_072, "max_total_tokens (172191) must be less than or equal to "
        "max_seq_len (131072)"),
    "Bedrock": (None, None, "Input is too long for requested model."),
    "Bedrock, validation": (None, None, "ValidationException: The input is too long"),
    "Bedrock, limit": (None, None, "Input exceeds the max input token limit"),
    "Bedrock, embeddings": (8_552, 8_192, "400 Bad Request: Too many input tokens. Max input "
        "tokens: 8192, request input token count: 8552"),
    "OpenRouter": (139_000, 128_000, "This endpoint's maximum context length is 128000 tokens. "
        "However, you requested about 140000 tokens (139000 of text input, 1000 in the output)."),
    "Together": (265_330, 262_144, "The input (265330 tokens) is longer than the model's context "
        "length (262144 tokens)."),
    "Fireworks": (150_000, 131_071, "The prompt is too long: 150000, model maximum context length: "
        "131071"),
    "Cloudflare": (24_595, 24_000, "AiError: The estimated number of input and maximum output "
        "tokens (24595) exceeded this model context window limit (24000)."),
    "watsonx": (4_536, 4_096, "Invalid input argument for Model 'm': the number of input tokens "
        "4536 cannot exceed the total tokens limit 4096 for this model"),
    "Databricks": (None, None, "Tokens in request more than max tokens allowed"),
    "Salesforce": (None, None, "Request input tokens exceed model token limit. Reduce the input "
        "size."),
    "vLLM": (4_176, 1_536, "This model's maximum context length is 1536 tokens. However, your "
        "request has 4176 input tokens. Please reduce the length of the input messages."),
    "vLLM, newer": (262_145, 262_144, "This model's maximum context length is 262144 tokens. "
        "However, you requested 0 output tokens and your prompt contains at least 262145 input "
        "tokens, for a total of at least 262145 tokens. Please reduce the length of the input "
        "prompt or the number of requested output tokens. (parameter=input_tokens, value=262145)"),
    "vLLM, passed": (262_145, 262_144, "You passed 262145 input tokens and requested 0 output "
        "tokens. However, the model's context length is only 262144 tokens."),
    "vLLM, older": (25_938, 4_096, "The prompt (total length 25938) is too long to fit into the "
        "model (context length 4096)."),
    "vLLM, decoder": (21_535, 16_384, "The decoder prompt (length 21535) is longer than the "
        "maximum "
        "model length of 16384."),
    "SGLang": (9_000, 8_192, "Input (9000 tokens) is longer than the model's context length "
        "(8192 tokens)."),
    "SGLang, total": (30_000, 32_768, "Requested token count exceeds the model's maximum context "
        "length of 32768 tokens. You requested a total of 33000 tokens: 30000 tokens from the "
        "input "
        "messages and 3000 tokens for the completion."),
    "TGI": (9_000, 8_193, "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 "
        "`inputs` tokens and 100 `max_new_tokens`"),
    "TensorRT": (5_000, 4_096, "Prompt length (5000) exceeds maximum input length (4096)."),
    "llama.cpp": (5_000, 4_096, "request (5000 tokens) exceeds the available context size (4096 "
        "tokens), try increasing it"),
    "llama.cpp, no size": (None, None, "the request exceeds the available context size. try "
        "increasing the context size or enable context shift"),
    "llama-cpp-python": (5_000, 4_096, "Requested tokens (5000) exceed context window of 4096"),
    "LM Studio": (None, None, "The number of tokens to keep from the initial prompt is greater "
        "than the context length."),
    "LM Studio, newer": (9_800, 4_096, "Trying to keep the first 9800 tokens when context the "
        "overflows. However, the model is loaded with context length of only 4096 tokens, which is "
        "not enough. Try to load the model with a larger context length, or provide a shorter "
        "input"),
    "DS4": (300_000, 131_072, "Prompt has 300,000 tokens, but the configured context size is "
        "131,072 tokens"),
    "TabbyAPI": (5_000, 4_096, "Prompt length 5000 is greater than max_seq_len 4096"),
    "Ollama": (None, None, "input length exceeds context length"),
    "Ollama, by how much": (None, None, "prompt too long; exceeded max context length by 512 "
        "tokens"),
    "a model's words": (None, None, "Prompt too large for this model"),
    "a gateway": (12_000, None, "Context window exceeded: requested 12000 tokens"),
    "OpenAI Responses, newer": (None, None, "Your input exceeds this model's context window"),
    "Kortix": (None, None, "context length exceeded from messages"),
    "the whole prompt": (9_000, 8_192, "Sequence length 9000 exceeds the maximum of 8192"),
    "a window": (9_000, None, "Requested 9000 tokens, but the context window has only 8192"),
    "a slot": (None, None, "slot context exceeded: n_ctx = 4096, n_tokens = 5000"),
    "above": (140_000, None, "token count 140000 is above the maximum 131072"),
    "does not fit": (None, None, "prompt of 9000 tokens does not fit into the context"),
    "a sum": (9_000, 8_192, "input tokens (9000) + max_tokens (1000) > context length (8192)"),
    "a comparison": (140_000, 128_000, "The request is too long for the model (140000 tokens > "
        "128000)"),
    "a plain limit": (9_000, 8_192, "number of input tokens must be no more than 8192, got 9000"),
    "thousands": (256_000, 128_000, "Model context window is 128k tokens, you requested 256k"),
    "TGI, inputs": (9_300, 8_192, "Input validation error: `inputs` must have less than 8192 "
        "tokens. Given: 9300"),
    "a limit of tokens": (None, None, "token limit exceeded"),
    "what was allowed": (150_000, 128_000, "Token limit exceeded: 150000 tokens requested, 128000 "
        "allowed"),
    "only has": (150_000, 128_000, "Requested 150000 tokens but the model only has a context of "
        "128000"),
    "can only handle": (12_000, None, "Your prompt is 12000 tokens but this model can only handle "
        "8192."),
    "were given": (None, 32_768, "This model supports a maximum of 32768 tokens, but 40000 were "
        "given"),
    "a maximum in brackets": (9_000, 8_192, "Input tokens (9000) exceeds the maximum (8192)"),
    "a maximum of this model": (9_000, 8_192, "The number of tokens in your request (9000) exceeds "
        "the maximum supported by this model (8192)"),
    "pi": (265_330, 262_144, "Input length (265330) exceeds model's maximum context length "
        "(262144)."),
    "the size of a prompt": (None, None, "Please reduce the size of your prompt."),
    "Z.AI, 1261": (None, None, "Prompt exceeds max length"),
    "smaller than": (None, None, "input_tokens (9000) must be smaller than context_length (8192)"),
    "a full context": (None, None, "ggml: the context is full"),
    "ik_llama.cpp": (None, None, "context shift is disabled"),
    "got": (9_100, 8_191, "Validation error: max input tokens is 8191, got 9100"),
    "Chinese, with a length": (None, None, "该模型最大上下文长度为 32768 个 token"),
    "Japanese": (None, None, "トークン数が上限を超えています"),
}  # fmt: skip

ANSWERS_TOO_LONG: dict[str, tuple[int | None, int | None, str]] = {
    "vLLM": (1_000, 32_768, "'max_tokens' is too large: 40000. This model's maximum context length "
        "is 32768 tokens and your request has 1000 input tokens (40000 > 32768 - 1000)."),
    "vLLM, two names": (20, 4_096, "'max_tokens' or 'max_completion_tokens' is too large: 5000. "
        "This model's maximum context length is 4096 tokens and your request has 20 input tokens"),
    "vLLM, in the engine": (None, 32_768, "max_tokens=40000 cannot be greater than "
        "max_model_len=32768. Please request fewer output tokens."),
}  # fmt: skip
"""Overflows for which `max_tokens` is to blame."""

NO_OVERFLOWS = {
    "Groq, per minute": "Request too large for model `m` in organization `o` service tier "
        "`on_demand` on tokens per minute (TPM): Limit 6000, Requested 8042, please reduce your "
        "message size and try again.",
    "OpenAI, per minute": "Request too large for gpt-4 on tokens per min (TPM): Limit 1, Requested "
        "2. The input or output tokens must be reduced in order to run successfully.",
    "OpenAI, tokens used": "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 300000, "
        "Used 286751, Requested 16144. Please try again in 579ms.",
    "Anthropic, per minute": "This request would exceed your organization's rate limit of 30,000 "
        "input tokens per minute. Please reduce the prompt length or the maximum tokens requested.",
    "Anthropic, its tokens": "Number of request tokens has exceeded your per-minute rate limit",
    "Azure, its tier": "Requests to the ChatCompletions_Create Operation have exceeded token rate "
        "limit of your current OpenAI S0 pricing tier. Please retry after 26 seconds.",
    "Bedrock, throttled": "ThrottlingException: Too many tokens, please wait before trying again.",
    "Bedrock, no name": "Too many tokens, please wait before trying again.",
    "Gemini, quota": "Quota exceeded for metric: generate_content_free_tier_input_token_count, "
        "limit: 250000. Please retry in 26.6s.",
    "a plan": "You have exceeded the token limit of your plan. Upgrade to continue.",
    "a month": "Monthly token limit exceeded",
    "OpenRouter, credits": "This request requires more credits, or fewer max_tokens. You requested "
        "up to 64000 tokens, but can only afford 2666.",
    "many requests": "Too many requests, the limit of requests was exceeded",
    "OpenAI, answer": "max_tokens is too large: 99999. This model supports at most 16384 "
        "completion "
        "tokens, whereas you provided 99999.",
    "Anthropic, answer": "max_tokens: 100000 > 64000, which is the maximum allowed number of "
        "output "
        "tokens for claude",
    "Groq, answer": "`max_tokens` must be less than or equal to `8192`, the maximum value for "
        "`max_tokens` is less than the `context_window` for this model",
    "DeepSeek, answer": "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "DashScope, answer": "Range of max_tokens should be [1, 8192]",
    "Bedrock, answer": "The maximum tokens you requested exceeds the model limit of 4096. Try "
        "again "
        "with a maximum tokens value that is lower than 4096.",
    "Bedrock Mantle, answer": "max_output_tokens (200000) exceeds model maximum output tokens "
        "(128000)",
    "Gemini, answer": "Unable to submit request because it has a maxOutputTokens value of 100000 "
        "but the supported range is from 1 (inclusive) to 65537 (exclusive).",
    "Anthropic, thinking": "`max_tokens` must be greater than `thinking.budget_tokens`.",
    "Anthropic, bytes": "Request exceeds the maximum size",
    "Anthropic, image": "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: "
        "6000000 bytes > 5242880 bytes",
    "Anthropic, pixels": "At least one of the image dimensions exceed max allowed size: 8000 "
        "pixels",
    "Anthropic, pages": "A maximum of 100 PDF pages may be provided",
    "Anthropic, many images": "too many images and documents: 101 + 0 > 100",
    "Gemini, bytes": "Request payload size exceeds the limit: 20971520 bytes.",
    "OpenAI, bytes": "Maximum content size limit (26214400) exceeded (26300000 bytes read)",
    "an image": "The image is too large",
    "an input image": "input image is too large",
    "a file": "File size exceeds the limit of 512 MB",
    "nginx": "413 Request Entity Too Large",
    "an audio": "Audio duration 1600 seconds is longer than 1500 seconds which is the maximum",
    "a tool's description": "Invalid 'tools[0].function.description': string too long. Expected a "
        "string with maximum length 1024, but got a string with length 1200 instead.",
    "a call's id": "Invalid 'messages[3].tool_calls[0].id': string too long. Expected a string "
        "with "
        "maximum length 40, but got a string with length 64 instead.",
    "many tools": "Invalid 'tools': array too long. Expected an array with maximum length 128, but "
        "got an array with length 140 instead.",
    "a schema": "The tool input schema is too large",
    "a name": "The name of the function in messages[2] is too long",
    "a user": "'user' is too long: 600 > 512 characters",
    "stop sequences": "Invalid 'stop': array too long. Expected an array with maximum length 4",
    "temperature": "temperature must be less than or equal to 2",
    "Go's deadline": "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    "a slow prompt": "The request took too long to process",
    "a small context": "Model context window too small (minimum is 16000 tokens)",
    "a key": "Your input token is invalid or expired",
    "many at once": "Too many concurrent requests for this model",
    "a filter": "The prompt was rejected by the content filter",
    "a model": "The model `gpt-4-32k-context` does not exist",
    "Cerebras, per minute": "Tokens per minute limit exceeded - too many tokens processed.",
    "Cerebras, shorter": "too many tokens processed",
    "OpenAI, a limit per minute": "This request exceeds the limit of 30000 tokens per minute",
    "a file as input": "input exceeds maximum file size",
    "a form": "The model input must be a list",
    "the beta": "To use the full context window, enable the beta header",
    "a bad key": "The token has expired",
    "a loaded server": "The server is overloaded: too many tokens in the queue",
    "tokens of an answer": "Output token limit exceeded",
    "logit_bias": "logit_bias has too many tokens",
    "a budget of thinking": "Thinking budget 40000 exceeds the maximum allowed 32768",
    "a small cache": "Cached content is too small. total_token_count=100, "
        "min_total_token_count=32768",
    "marks of a cache": "No more than 4 blocks with cache_control may be provided. Found 5.",
    "a web token": "Invalid token: JWT exceeds maximum length",
    "images of a prompt": "at most 1 image may be provided in one prompt",
    "the values of max_tokens": "The maximum value for max_tokens is 4096",
    "at most so many": "This model supports at most 4096 completion tokens",
    "characters": "Your prompt contains too many special characters",
    "a long wait": "The queue is too long, try again later",
}  # fmt: skip
