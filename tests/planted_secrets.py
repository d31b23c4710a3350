"""54 secrets as environments hold them, and the texts of each that may be nowhere.

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
    "KEYSTORE_PASS": ("canary54\"quoted'\\pass",),
}
"""By variable: the value that is planted, or a part of it (`CARRIERS`), and its parts."""
CARRIERS = {
    "DATABASE_URL": "postgres://robot:{}@db.example.com:5432/main",
    "REDIS_URL": "redis://:{}@cache.example.com:6379/0",
    "HTTPS_PROXY_OF_MINE": "http://robot:{}@proxy.example.com:3128",
    "PIP_EXTRA_INDEX_URL": "https://a.example.com/simple https://robot:{}@b.example.com/simple",
    "CALLBACK_URL": "https://b.example.com/back?user=me&access_token={}",
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
    "MAX_TOKENS": "1234567890abcdef1234",
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
