"""Secrets as environments hold them, and the texts of each that may be nowhere.

Each value is of its own, so that a leak names the variable.
"""

from __future__ import annotations

import base64
import json

PEM = """-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDcanary54pemA
q8Zt1mWJHyeUoV3gkKcanary54pemBx0n5Rf7LsPd2QhTzYbGvXcJmNwEaSuIoKl
-----END PRIVATE KEY-----"""
_SERVICE_KEY = "-----BEGIN KEY-----\nMIIcanary54jsonA1b2C3d4E5f6G7h8\n-----END KEY-----\n"
SERVICE_ACCOUNT = json.dumps(
    {
        "type": "service_account",
        "private_key_id": "canary54jsonid0123456789abcdef",
        "private_key": _SERVICE_KEY,
        "client_email": "robot@example.com",
    }
)
_LOGIN = base64.b64encode(b"robot:canary54-in-base64").decode()
_SENTRY = "https://canary54dsn0123456789abcdef@o1.ingest.example.com/42"
_SLACK = "https://hooks.example.com/services/T00CANARY/B00CANARY/xXcanaryFiftyFourHookXx"
_SAS = "https://a.blob.example.net/c?sv=2024-01-01&sp=r&sig=canary54sasQ%2Bsignature%3D"
_AZURE = "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=canary54Azure+Key/abc==;E=x"
_LIBPQ = "host=db port=5432 user=me password='canary54 pg pass' dbname=x"

_RSA = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowCanary54rsaA1b2C3\n-----END RSA PRIVATE KEY-----"
_LONG_LINES = [f"canary54-line-{i:02}-" + "x1" * 450 for i in range(12)]

SECRETS: dict[str, tuple[str, ...]] = {
    # The value, then the parts of it that are secrets alone.
    "DB_PASS": ("canary54-dbpass",),
    "SMTP_PASS": ("canary54-smtp!pass",),
    "SSHPASS": ("canary54-sshpass",),
    "PGPASSWORD": ("canary54-pgpassword",),
    "MYSQL_PWD": ("canary54-mysqlpwd",),
    "API_SECRET": ("canary-without-any-digit",),
    "DOCKER_PASSWORD": ("CanaryOfLettersOnlyDocker",),
    "SENTRY_DSN": (_SENTRY, "canary54dsn0123456789abcdef"),
    "SLACK_WEBHOOK_URL": (_SLACK, "xXcanaryFiftyFourHookXx"),
    "DISCORD_WEBHOOK": ("https://discord.example.com/api/webhooks/1/canary54discordToken",),
    "SAS_URL": (_SAS, "canary54sasQ+signature="),
    "AZURE_STORAGE_CONNECTION_STRING": (_AZURE, "canary54Azure+Key/abc=="),
    "PG_CONN_STR": (_LIBPQ, "canary54 pg pass"),
    "GOOGLE_CREDS": ("canary54-google-creds",),
    "GOOGLE_APPLICATION_CREDENTIALS_JSON": (
        *(SERVICE_ACCOUNT, _SERVICE_KEY, "MIIcanary54jsonA1b2C3d4E5f6G7h8"),
        "canary54jsonid0123456789abcdef",
    ),
    "NPM_AUTH": (_LOGIN, "canary54-in-base64"),
    "BASIC_AUTH": ("robot:canary54-basic", "canary54-basic"),
    "AUTH_HEADER": ("Bearer canary54authheader", "canary54authheader"),
    "X_API_HEADER_TOKEN": ("X-Api-Key: canary54inheader", "canary54inheader"),
    "DATABASE_URL": ("canary54%2Fin%3Aurl", "canary54/in:url"),
    "REDIS_URL": ("canary54-redis-nouser",),
    "HTTPS_PROXY_OF_MINE": ("canary54-proxy-login",),
    "PIP_EXTRA_INDEX_URL": ("canary54-pip-index",),
    "CALLBACK_URL": ("canary54-in-a-query",),
    "JAVA_OPTIONS": ("canary54-in-options",),
    "AWS_SECRET_ACCESS_KEY": ("canary54aws/secret+ABCdefGHIjklMNOpqr",),
    "AWS_ACCESS_KEY_ID": ("AKIACANARY54EXAMPLE1",),
    "AWS_SESSION_TOKEN": ("canary54//////////awssession==",),
    "GITHUB_TOKEN": ("ghp_canary54github",),
    "GITHUB_PAT": ("github_pat_canary54",),
    "HF_TOKEN": ("hf_canaryLettersOnlyToken",),
    "SOME_API_KEY": ("canary-some-api-key",),
    "LICENSE_KEY": ("CANARY-54AB-CDEF-GHIJ",),
    "dbPassword": ("canary54-camel",),
    "openaiKey": ("canary54-openai-camel",),
    "DEPLOY_KEY_2": ("canary54-deploy",),
    "ENCRYPTION_KEY_BASE64": ("Y2FuYXJ5NTQta2V5LWJhc2U2NA==",),
    "SSH_PRIVATE_KEY": (PEM, *PEM.splitlines()[1:3]),
    "TLS_PRIVATE": ("canary54-tls-private",),
    "RSA_PASSPHRASE": ("canary horse battery staple",),
    "JWT": ("eyJcanary54.eyJhbGci.c2ln",),
    "SESSION_COOKIE": ("canary54cookie",),
    "PHPSESSID": ("canary54phpsessid",),
    "LOGIN_SESSION_ID": ("canary54loginsession",),
    "SHIBBOLETH_SESSION_ID": ("_canary54shibboleth",),
    "URL_SIGNATURE": ("canary54signature",),
    "WEBHOOK_SIG": ("canary54webhooksig",),
    "DUO_OTP": ("canary54otp",),
    "NETWORK_CREDENTIALS": ("DOMAIN\\robot:canary54net", "canary54net"),
    "DOCKER_AUTH_CONFIG": (
        json.dumps({"auths": {"r.example.com": {"auth": "Y2FuYXJ5NTQ6ZG9ja2VyNTQ="}}}),
        "Y2FuYXJ5NTQ6ZG9ja2VyNTQ=",
        "docker54",
    ),
    "SHORT_TOKEN": ("c4n4r9",),
    "NUMBER_PASSWORD": ("5454545454321",),
    "CLIENT_SECRET_VALUE": ("canary54~client.secret",),
    "INPUT_GITHUB_TOKEN": ("canary-input-token",),
    "OUTPUT_API_TOKEN": ("canary54output",),
    "MAX_API_TOKENS": ("canary54max",),
    "WIFI_PSK": ("canary54wifipsk",),
    "REQUEST_HMAC": ("canary54hmac",),
    "STRIPE_SK": ("canary54stripe",),
    "API_KEYS": ("canary54-k1,canary54-k2", "canary54-k1", "canary54-k2"),
    "MORE_API_KEYS": ("canary54-k3;canary54-k4", "canary54-k3", "canary54-k4"),
    "COLON_API_KEYS": ("canary54-k5:canary54-k6", "canary54-k5", "canary54-k6"),
    "NAMED_API_KEYS": ("ada=canary54-k7,bob=canary54-k8", "canary54-k7", "canary54-k8"),
    "JSON_API_KEYS": ('["canary54-k9", "canarykeyten"]', "canary54-k9", "canarykeyten"),
    "USERS_SECRET": (
        '{"ada": "canary-user-pw", "n": 5454545499, "type": "list"}',
        *("canary-user-pw", "5454545499"),
    ),
    "PYTHON_PASSWORDS": ("{'a': 'canary54-py', 'b': ('canary-two',)}", "canary54-py", "canary-two"),
    "BACKUP_CODES_SECRET": (
        "canary-1abc\ncan4ry\ncanary-3abc",
        *("canary-1abc", "can4ry", "canary-3abc"),
    ),
    "BLANKS_PASSWORD": ("ada c4nary b0b", "c4nary"),
    "LONG_SECRET": ("\n".join(_LONG_LINES), _LONG_LINES[0], _LONG_LINES[-1]),
    "LONG_LINE_SECRET": ("canary54longline" * 700, "canary54longline" * 125),
    "OTEL_EXPORTER_OTLP_HEADERS": ("canary54otel",),
    "OTEL_OF_MINE": ("canary54otelmine",),
    "CURL_OPTIONS": ("canary54curl",),
    "SERVICE_OPTIONS": ("canary54flag",),
    "SERVICE_YAML": ("canary54yaml",),
    "HASH_URL": ("canary#54hash",),
    "SLASH_URL": ("canary/54sl@sh",),
    "QUESTION_URL": ("canary?54question",),
    "BRACKET_URL": ("canary[54bracket",),
    "QUOTE_URL": ("canary'54quote",),
    "LESS_URL": ("canary<54less",),
    "BLANK_URL": ("canary 54 blank",),
    "FIRST_OF_URLS": ("canary54first",),
    "SECOND_OF_URLS": ("canary54second",),
    "HTTP_PROXY_BARE": ("canary54userinfo",),
    "CORPORATE_PROXY": ("canary54bareproxy",),
    "FILES_AWS_SECRET_ACCESS_KEY": ("wJalrCanary54/K7MDENG/bPxRfiCY",),
    "SLASHES_PASSWORD": ("/canary-horse/battery",),
    "FILE_LIKE_PASSWORD": ("canary54.pem",),
    "TILDE_PASSPHRASE": ("~canary/horse",),
    "GH": ("ghp_canary54abcdefghij",),
    "STRIPE": ("sk_live_canary54abcdef",),
    "OPENAI": ("sk-proj-canary54abcdefgh",),
    "SLACK_BOT": ("xoxb-canary54-abcdefgh",),
    "GITLAB": ("glpat-canary54abcdefgh",),
    "MY_PEM": (_RSA, "MIIEowCanary54rsaA1b2C3"),
    "KEYSTORE_PASS": ("canary54\"quoted'\\pass",),
}
"""By variable: the value that is planted, or a part of it (`CARRIERS`), and its parts."""
CARRIERS = {
    "DATABASE_URL": "postgres://robot:{}@db.example.com:5432/main",
    "REDIS_URL": "redis://:{}@cache.example.com:6379/0",
    "HTTPS_PROXY_OF_MINE": "http://robot:{}@proxy.example.com:3128",
    "PIP_EXTRA_INDEX_URL": "https://a.example.com/simple https://robot:{}@b.example.com/simple",
    "CALLBACK_URL": "https://b.example.com/back?user=me&access_token={}",
    "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer {},x=1",
    "OTEL_OF_MINE": "Authorization=Basic%20{},x=1",
    "CURL_OPTIONS": "-s -H 'Authorization: Bearer {}'",
    "SERVICE_OPTIONS": "--verbose --api-key {} --host h",
    "SERVICE_YAML": "user: ada\npassword: {}\nport: 1",
    "HASH_URL": "postgresql://app:{}@db/x",
    "SLASH_URL": "postgresql://app:{}@db/x",
    "QUESTION_URL": "postgresql://app:{}@db/x",
    "BRACKET_URL": "postgresql://app:{}@db/x",
    "QUOTE_URL": "postgresql://app:{}@db/x",
    "LESS_URL": "postgresql://app:{}@db/x",
    "BLANK_URL": "postgresql+psycopg2://app:{}@db/x",
    "FIRST_OF_URLS": "amqp://a:{}@h1,amqp://a:guest@h2",
    "SECOND_OF_URLS": "amqp://a:guest@h1,amqp://a:{}@h2",
    "HTTP_PROXY_BARE": "https://{}@host.example.com/x",
    "CORPORATE_PROXY": "bob:{}@proxy.example.com:3128",
    "JAVA_OPTIONS": "-Xmx1g -Dtruststore.password={} -Dx=y",
}
"""Variables whose names say nothing, and whose values hold a secret beside other text."""
ENVIRONMENT = {
    name: CARRIERS.get(name, "{}").replace("{}", texts[0]) for name, texts in SECRETS.items()
}
EVERYTHING = " | ".join(ENVIRONMENT.values())
"""All of them in one text."""
WORDS = {"DEPLOYMENT_SECRET": "production", "DOOR_PASSWORD": "swordfish", "PIN_SECRET": "482915"}
"""Ordinary words: hidden where they stand alone."""
HARMLESS = {
    "MAX_TOKENS": "4096",
    "MAX_OUTPUT_TOKENS": "unlimited",
    "SORT_KEY": "column1",
    "AUTH_TYPE": "kerberos5",
    "KEY_FILE": __file__,
    "SSH_AUTH_SOCK": "/tmp/ssh-x1y2z3/agent.4711",
    "DB_PASSWORD": "postgres",
    "PATH_LIKE": "abcdefgh12345678",
    "SECRET_ENABLED": "enabled",
    "TOKENIZERS_PARALLELISM": "false",
    "PRIMARY_KEY_NAME": "customer_id1",
    "KEYTIMEOUT": "100000ms",
    "PASSENGER_ROOT": "passenger1",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "XDG_SESSION_ID": "c2",
    "GOOGLE_APPLICATION_CREDENTIALS": "/keys/robot.json",
    "SSH_ASKPASS": "/usr/bin/ask-pass1",
    "PASSWORD_MIN": "12",
    "OPENAI_API_KEY": "lm-studio",
    "TOKEN_FILE": "/var/run/none/here1",
    "PRIVATE_IP": "10.20.30.40",
    "KEYBOARD_LAYOUT": "dvorak12",
    "XAUTHORITY": "/run/user/x1/auth",
    "GNOME_KEYRING_CONTROL": "/run/user/1000/keyring",
    "OS_AUTH_URL": "https://keystone.example.com:5000/v3",
    "STRIPE_PUBLIC_KEY": "pk_live_12345678",
    "CACHE_KEY": "v1-linux-build",
    "ORACLE_SID": "ORCLCDB1",
    "JUPYTERHUB_OAUTH_CALLBACK_URL": "/user/ada/oauth_callback",
    "AUTHOR_NAME": "Ada Lovelace 1",
    "COMPASS_HEADING": "north-east1",
}
"""Variables that are no secrets, and stay as they are."""


ORDINARY = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/bin:/opt/conda3/bin:/home/ada12345/.local/bin",
    "LS_COLORS": "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33:*.tar=01;31:*.key=00;32:*.7z=01;31",
    "PS1": r"\[\e]0;\u@\h: \w\a\]${debian_chroot:+($debian_chroot)}\u@\h:\w\$ ",
    "LANG": "en_US.UTF-8",
    "LC_ALL": "sk_SK.UTF-8",
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "HOSTNAME": "jupyter-ada12345-7d9f",
    "JAVA_HOME": "/usr/lib/jvm/java-21-openjdk-amd64",
    "PWD": "/home/ada12345/projects/x1",
    "OLDPWD": "/home/ada12345",
    "SHLVL": "1",
    "USER": "ada12345",
    "SHELL": "/usr/bin/bash",
    "EDITOR": "code --wait",
    "XDG_SESSION_ID": "c12",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "XDG_DATA_DIRS": "/usr/local/share:/usr/share:/var/lib/snapd/desktop",
    "PYTHON_VERSION": "3.11.7rc2",
    "GPG_KEY": "A035C8C19219BA821ECEA86B64E628F8D684696D",
    "GOOGLE_CLOUD_PROJECT": "my-project-123456",
    "NEXT_PUBLIC_URL": "https://www.example.com/a1b2c3d4e5",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "GITHUB_ACTIONS": "true",
    "GITHUB_SHA": "ffac537e6cbbf934b08745a378932722df287a53",
    "GITHUB_REPOSITORY": "octo-org/hello-world2",
    "GITHUB_REF": "refs/pull/128/merge",
    "GITHUB_WORKFLOW_REF": "octo/hello/.github/workflows/ci.yml@refs/heads/main",
    "GITHUB_API_URL": "https://api.github.com",
    "GITHUB_RUN_ID": "1658821493",
    "GITHUB_TOKEN_PERMISSIONS_MODE": "restricted1",
    "RUNNER_TEMP": "/home/runner/work/_temp",
    "INPUT_NODE_VERSION": "20.11.1-lts",
    "CI_COMMIT_SHA": "1ecfd275763eff1d6b4844ea3168962458c9f27a",
    "CI_JOB_NAME": "test:python3.12",
    "CI_PROJECT_PATH": "group1/project2",
    "CI_API_V4_URL": "https://gitlab.example.com/api/v4",
    "CI_SERVER_TLS_CA_FILE": "/builds/ca-file.pem",
    "MAX_TOKENS": "4096",
    "PROMPT_TOKENS_LIMIT": "1,000,000",
    "TOKENS_PER_MINUTE": "250000.5",
    "TOKENIZER_NAME": "cl100k_base",
    "HMAC_ALGORITHM": "hmac-sha256-128",
    "HMAC": "sha256",
    "SSH_CONNECTION": "10.0.0.2 51234 10.0.0.9 22",
    "SSH_AUTH_SOCK": "/tmp/ssh-XXXXabcd1234/agent.4711",
    "GIT_SSH_COMMAND": "ssh -i /home/ada/.ssh/id_ed25519 -o IdentitiesOnly=yes",
    "GIT_REMOTE": "ssh://git@example.com:22/a/b1c2d3e4",
    "HTTPS_PROXY": "http://proxy.example.com:3128",
    "ALL_PROXY": "proxy1.example.com:3128",
    "NO_PROXY": "localhost,127.0.0.1,.example.com:8080",
    "DATABASE_URL": "postgresql://localhost:5432/main1?application_name=me@home",
    "PACKAGE_URL": "https://registry.example.com:8443/@scope/package1",
    "PIP_FIND_LINKS": "https://a.example.com/x1 https://b.example.com/@y2",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://otel.example.com:4317",
    "OTEL_RESOURCE_ATTRIBUTES": "service.name=web1,deployment.environment=staging2",
    "JUPYTER_CONFIG": '{"ServerApp": {"port": 8888, "root_dir": "/home/ada12345"}}',
    "VSCODE_IPC_HOOK_CLI": "/tmp/vscode-ipc-0a1b2c3d.sock",
    "CONDA_PROMPT_MODIFIER": "(base311) ",
    "CUDA_VERSION": "12.4.1",
    "NVIDIA_REQUIRE_CUDA": "cuda>=12.4 brand=tesla,driver>=470,driver<471",
    "SKLEARN_PACKAGE": "sk-learn-contrib-package",
    "NOTE": "Remember: the meeting is at 10:30 in room b12",
    "CERTIFICATE": "-----BEGIN CERTIFICATE-----\nMIIBabcdefgh12345678\n-----END CERTIFICATE-----",
}
"""Ordinary environments, of a shell, a container and continuous integration: all stay visible."""


def leaks(text: str) -> list[str]:
    """The variables of which a text holds a part."""
    found = {
        name: [form for part in parts for form in _forms(part) if form in text]
        for name, parts in SECRETS.items()
    }
    return [name for name, forms in found.items() if forms]


def _forms(part: str) -> set[str]:
    """A text as it is, and inside of JSON."""
    return {part, json.dumps(part)[1:-1], json.dumps(json.dumps(part))[3:-3]}
