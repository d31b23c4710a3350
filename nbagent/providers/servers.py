"""The servers that nbagent knows, one row each. A new server is one row here, and nothing else.

A row says everything that is particular to its server: see the fields of `Server`, `Provider` and
`Profile`. A comment in a row names the page of the vendor's documentation that says so. Look-up by
name and providers of other packages are in `catalogue`.

The order of the rows matters once: if a run names no model and several keys are set, the first row
with a `default_model` and a key wins. A new row goes behind the others of its kind.

Three fields say which servers are the vendor's:
    default_base_url  Gets the key, and a bare host gets its path. Write it if there is one server.
    key_hosts         Further domains that get the key (over TLS). Write one only if all servers in
                      it are the vendor's, never a cloud where everybody gets a name.
    domain            Gets no key, but the row's quirks and key header if a person gives such a base
                      URL to `openai-compatible:`. Write it for every server on the Internet.
`needs_key=False` is for servers that answer without one (on this machine): otherwise a missing key
is an error that names `key_variables`, before anything is sent to the vendor's servers.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nbagent.providers.address import UrlTemplate
from nbagent.providers.batches.offer import BatchOffer
from nbagent.providers.keys import KeyHeader
from nbagent.providers.server_batches import (
    anthropic_batches,
    azure_batches,
    google_batches,
    openai_batches,
)
from nbagent.providers.server_row import Server
from nbagent.providers.server_wires import (
    anthropic_wires,
    azure_wires,
    chat_wires,
    google_wires,
    ollama_wires,
    responses_wires,
)
from nbagent.providers.wires.chat_profiles import Profile
from nbagent.providers.wires.ollama import is_paid_model, ollama_url


def known_row(base_url: str) -> Server | None:
    """Return the row of the server at this address; None if it is unknown."""
    return next((row for row in SERVERS if row.is_at(base_url)), None)


def built_in_server(name: str) -> Server:
    """Return the row of a built-in server."""
    return next(row for row in SERVERS if row.name == name)


_AZURE_HOSTS = tuple(
    f"{service}.azure.{cloud}"
    for cloud in ("com", "us", "cn")
    for service in ("openai", "cognitiveservices", "services.ai", "models.ai")
)
"""Not all of azure.com: everybody can get a name in cloudapp.azure.com, and the key goes there."""
_OPENAI = Profile(
    max_tokens_field="max_completion_tokens",
    return_reasoning="never",
    call_id_pattern=re.compile(r"[A-Za-z0-9_-]{1,40}"),
    follows_refs=True,
    schema_mode="with tools",
    null_content=True,
    think_tags=False,
    has_responses=True,
    responses_schema=True,
)
_OPENAI_BATCHES = BatchOffer(open=openai_batches)
"""OpenAI's guide, Batch API: "50% lower costs"."""
_HOSTED = Profile(return_reasoning="never", names_tool_results=True)
_GEMINI = replace(_HOSTED, default_path="/v1beta/openai", null_content=True)
_LOCAL = Profile(effort_style="template", names_tool_results=True)

SERVERS: tuple[Server, ...] = (
    Server(
        name="openai",
        wires=chat_wires,
        default_base_url="https://api.openai.com/v1",
        domain="openai.com",
        key_variables=("OPENAI_API_KEY", "LLM_API_KEY"),
        base_url_variables=("OPENAI_BASE_URL", "LLM_BASE_URL"),
        default_model="gpt-5.4",
        quirks=_OPENAI,
        row_at=known_row,
        batches=_OPENAI_BATCHES,
    ),
    Server(
        name="openai-responses",
        wires=responses_wires,
        default_base_url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY", "LLM_API_KEY"),
        base_url_variables=("OPENAI_BASE_URL", "LLM_BASE_URL"),
        price_name="openai",
        telemetry_name="openai",
        row_at=known_row,
        batches=_OPENAI_BATCHES,
    ),
    Server(
        name="openai-compatible",
        wires=chat_wires,
        key_variables=("LLM_API_KEY",),
        base_url_variables=("LLM_BASE_URL",),
        needs_key=False,
        row_at=known_row,
        batches=_OPENAI_BATCHES,
    ),
    Server(
        name="azure",
        wires=azure_wires,
        domain="azure.com",
        key_variables=("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
        key_hosts=_AZURE_HOSTS,
        key_header=KeyHeader("api-key", "", tokens_as_bearer=True),
        base_url_variables=("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
        telemetry_name="azure.ai.openai",
        quirks=replace(_OPENAI, default_path="/openai/v1"),
        batches=BatchOffer(open=azure_batches),
    ),
    Server(
        name="anthropic",
        wires=anthropic_wires,
        default_base_url="https://api.anthropic.com/v1",
        domain="anthropic.com",
        key_variables=("ANTHROPIC_API_KEY",),
        base_url_variables=("ANTHROPIC_BASE_URL",),
        default_model="claude-sonnet-5-5",
        # platform.claude.com, Batch processing: half the price of input and output.
        batches=BatchOffer(open=anthropic_batches),
        # Of its endpoint for Chat Completions.
        quirks=Profile(
            return_reasoning="never",
            follows_refs=True,
            schema_mode="never",
            null_content=True,
            think_tags=False,
        ),
    ),
    Server(
        name="google",
        wires=google_wires,
        default_base_url="https://generativelanguage.googleapis.com/v1",
        domain="googleapis.com",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_variables=("GEMINI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
        default_model="gemini-3.8-flash",
        telemetry_name="gcp.gemini",
        # ai.google.dev, Batch API: "50% of the standard cost".
        batches=BatchOffer(open=google_batches),
        quirks=_GEMINI,  # Of its endpoint for Chat Completions.
    ),
    Server(
        name="deepseek",
        wires=chat_wires,
        default_base_url="https://api.deepseek.com",
        domain="deepseek.com",
        key_variables=("DEEPSEEK_API_KEY",),
        base_url_variables=("DEEPSEEK_BASE_URL",),
        default_model="deepseek-flash",
        quirks=Profile(
            effort_style="deepseek",
            forced_tool_stops_thinking=True,
            return_reasoning="deepseek",
            # It refuses `json_schema`: "This response_format type is unavailable now".
            accepts_schema=False,
            schema_mode="never",
        ),
    ),
    Server(
        name="openrouter",
        wires=chat_wires,
        default_base_url="https://openrouter.ai/api/v1",
        domain="openrouter.ai",
        key_variables=("OPENROUTER_API_KEY",),
        base_url_variables=("OPENROUTER_BASE_URL",),
        quirks=Profile(
            effort_style="openrouter",
            null_content=True,
            names_tool_results=True,
        ),
    ),
    Server(
        name="groq",
        wires=chat_wires,
        default_base_url="https://api.groq.com/openai/v1",
        domain="groq.com",
        key_variables=("GROQ_API_KEY",),
        base_url_variables=("GROQ_BASE_URL",),
        # console.groq.com/docs/batch: the form and the endpoint of OpenAI, at half the price.
        batches=_OPENAI_BATCHES,
        quirks=replace(
            _HOSTED,
            omit_tools_for_none=True,
            schema_mode="never",  # Its json_schema excludes tools and streams.
        ),
    ),
    Server(
        name="mistral",
        wires=chat_wires,
        default_base_url="https://api.mistral.ai/v1",
        domain="mistral.ai",
        key_variables=("MISTRAL_API_KEY",),
        base_url_variables=("MISTRAL_BASE_URL",),
        telemetry_name="mistral_ai",
        quirks=replace(
            _HOSTED,
            effort_style="mistral",
            omit_tools_for_none=True,
            call_id_pattern=re.compile(r"[A-Za-z0-9]{9}"),
            plain_schema=True,
        ),
    ),
    Server(
        name="xai",
        wires=chat_wires,
        default_base_url="https://api.x.ai/v1",
        domain="x.ai",
        key_variables=("XAI_API_KEY",),
        base_url_variables=("XAI_BASE_URL",),
        price_name="x-ai",
        telemetry_name="x_ai",
        # docs.x.ai, API reference, Chat Completions: `max_tokens` is deprecated. Its reasoning
        # models refuse `stop`, some also `reasoning_effort`; the client learns that.
        quirks=Profile(max_tokens_field="max_completion_tokens"),
    ),
    Server(
        name="together",
        wires=chat_wires,
        default_base_url="https://api.together.xyz/v1",
        domain="together.xyz",
        key_hosts=("api.together.ai",),  # The host that its newer pages name.
        key_variables=("TOGETHER_API_KEY",),
        base_url_variables=("TOGETHER_BASE_URL",),
        # docs.together.ai, Reasoning: models that can do without take `reasoning: {enabled}`,
        # the others `reasoning_effort`.
        quirks=Profile(effort_style="together"),
    ),
    Server(
        name="fireworks",
        wires=chat_wires,
        default_base_url="https://api.fireworks.ai/inference/v1",
        domain="fireworks.ai",
        key_variables=("FIREWORKS_API_KEY",),
        base_url_variables=("FIREWORKS_BASE_URL",),
        # docs.fireworks.ai, Reasoning and Structured Outputs: `reasoning_effort`, also `none`;
        # `reasoning_content` goes back in a tool loop; `json_schema` is enforced.
        quirks=Profile(),
    ),
    Server(
        name="cerebras",
        wires=chat_wires,
        default_base_url="https://api.cerebras.ai/v1",
        domain="cerebras.ai",
        key_variables=("CEREBRAS_API_KEY",),
        base_url_variables=("CEREBRAS_BASE_URL",),
        # inference-docs.cerebras.ai, Chat Completions and Reasoning: `max_completion_tokens`;
        # reasoning comes in the field `reasoning`.
        quirks=Profile(max_tokens_field="max_completion_tokens"),
    ),
    Server(
        name="moonshot",
        wires=chat_wires,
        default_base_url="https://api.moonshot.ai/v1",
        domain="moonshot.ai",
        key_variables=("MOONSHOT_API_KEY",),
        base_url_variables=("MOONSHOT_BASE_URL",),
        price_name="moonshotai",
        telemetry_name="moonshot_ai",
        # platform.kimi.ai, Create Chat Completion: `max_tokens` is deprecated; `thinking: {type}`.
        # A turn with calls needs `reasoning_content`, as at DeepSeek (400 "reasoning_content is
        # missing in assistant tool call message").
        quirks=Profile(
            max_tokens_field="max_completion_tokens",
            effort_style="thinking",
            forced_tool_stops_thinking=True,  # "incompatible with thinking enabled"
            return_reasoning="deepseek",
        ),
    ),
    Server(
        name="zai",
        wires=chat_wires,
        default_base_url="https://api.z.ai/api/paas/v4",
        domain="z.ai",
        key_variables=("ZAI_API_KEY",),
        base_url_variables=("ZAI_BASE_URL",),
        # docs.z.ai, Chat Completion: `tool_choice` is `auto` only, `response_format` is text or
        # json_object, `thinking: {type}`; a stream ends with the usage, unasked.
        quirks=Profile(
            effort_style="thinking",
            knows_tool_choice=False,
            accepts_schema=False,
            schema_mode="never",
            asks_for_usage=False,
        ),
    ),
    Server(
        name="huggingface",
        wires=chat_wires,
        default_base_url="https://router.huggingface.co/v1",
        domain="huggingface.co",
        key_variables=("HF_TOKEN",),
        base_url_variables=("HUGGINGFACE_BASE_URL",),
        # huggingface.co/docs/inference-providers: a model is `owner/name`, or
        # `owner/name:provider`. Which fields a provider refuses is learnt.
        quirks=Profile(),
    ),
    Server(
        name="bedrock",
        wires=chat_wires,
        # docs.aws.amazon.com/bedrock, OpenAI Chat Completions API. The other address, for further
        # models, is that of OpenAI's own SDKs, as are the variables (their page bedrock.md).
        base_url_template=UrlTemplate(
            "https://bedrock-runtime.{region}.amazonaws.com/openai/v1",
            variables={"region": ("AWS_REGION", "AWS_DEFAULT_REGION")},
            others=("https://bedrock-mantle.{region}.api.aws/openai/v1",),
        ),
        key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
        base_url_variables=("AWS_BEDROCK_BASE_URL",),
        price_name="aws",
        telemetry_name="aws.bedrock",
        quirks=Profile(max_tokens_field="max_completion_tokens"),
    ),
    Server(
        name="vertex",
        wires=chat_wires,
        # docs.cloud.google.com/vertex-ai, Using OpenAI libraries: the endpoint `openapi` is that
        # of Gemini. Tokens live for an hour: give a function as the key.
        base_url_template=UrlTemplate(
            "https://{location}-aiplatform.googleapis.com/v1/projects/{project}"
            "/locations/{location}/endpoints/openapi",
            variables={
                "project": ("GOOGLE_CLOUD_PROJECT",),
                "location": ("GOOGLE_CLOUD_LOCATION",),
            },
            exceptions={
                ("location", "global"): "https://aiplatform.googleapis.com/v1/projects/{project}"
                "/locations/global/endpoints/openapi"
            },
        ),
        key_variables=("VERTEX_API_KEY",),
        base_url_variables=("VERTEX_BASE_URL",),
        price_name="google",
        telemetry_name="gcp.vertex_ai",
        quirks=replace(_GEMINI, account_headers={}),  # The project is in the URL.
    ),
    Server(
        name="ollama",
        wires=ollama_wires,
        default_base_url="http://127.0.0.1:11434",
        domain="ollama.com",
        port=11434,
        start="ollama serve",
        suggests_model=True,
        needs_key=False,
        key_variables=("OLLAMA_API_KEY",),
        key_hosts=("ollama.com",),
        base_url_variables=("OLLAMA_HOST",),
        read_url=ollama_url,
        is_free=True,
        paid_models=is_paid_model,
        # Of its endpoint for Chat Completions.
        quirks=Profile(default_path="/v1", omit_tools_for_none=True, names_tool_results=True),
    ),
    Server(
        name="vllm",
        wires=chat_wires,
        default_base_url="http://127.0.0.1:8000/v1",
        start="vllm serve MODEL",
        needs_key=False,
        key_variables=("VLLM_API_KEY",),
        base_url_variables=("VLLM_BASE_URL",),
        is_free=True,
        quirks=_LOCAL,
    ),
    Server(
        name="lmstudio",
        wires=chat_wires,
        default_base_url="http://127.0.0.1:1234/v1",
        start="lms server start",
        needs_key=False,
        key_variables=("LMSTUDIO_API_KEY",),
        base_url_variables=("LMSTUDIO_BASE_URL",),
        is_free=True,
    ),
    Server(
        name="llamacpp",
        wires=chat_wires,
        default_base_url="http://127.0.0.1:8080/v1",
        start="llama-server -m FILE.gguf",
        needs_key=False,
        key_variables=("LLAMACPP_API_KEY",),
        base_url_variables=("LLAMACPP_BASE_URL",),
        is_free=True,
        quirks=_LOCAL,
    ),
)
