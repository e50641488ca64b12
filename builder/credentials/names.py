"""Names of variables that hold credentials, told by the words that they are made of."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The last word of a name that holds one, as in HF_TOKEN.
_WORDS = _words("""
    TOKEN SECRET SECRETS PASSWORD PASSWORDS PASSWD PASS PASSCODE PASSPHRASE PWD PW PSWD PSK
    KEY APIKEY APIKEYS PRIVKEY SECRETKEY ACCESSKEY CREDS CREDENTIAL CREDENTIALS
    AUTH AUTHORIZATION BEARER JWT PAT COOKIE DSN CONNSTR SAS SIGNATURE WEBHOOK MNEMONIC OTP TOTP
    HMAC SAK HTPASSWD BASICAUTH SESSIONID DOCKERCONFIGJSON KEYTAB PFX
    PASSWORT KENNWORT SCHLUESSEL PASSE MOTDEPASSE MDP CONTRASENA CLAVE SENHA WACHTWOORD
""")
# The end of a longer word, as in DBPASSWORD.
_ENDINGS = (
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "SECRET",
    "APIKEY",
    "TOKEN",
    "SCHLUESSEL",
    "PASSWORT",
)
# Two words written as one.
_JOINED = re.compile(
    "(?:PRIVATE|PRESHARED|ENCRYPTION|SIGNING|MASTER|SHARED|ACCOUNT|SERVICE|DEPLOY|CLIENT"
    "|SSH|SSL|TLS|GPG|AUTH)KEY|APITOKEN"
    "|(?:SSH|DB|PG|USER|ROOT|ADMIN|KEY|STORE|SMTP|LDAP|SQL|REDIS|MAIL|FTP|PROXY)(?:PASS|PWD|PW)"
)
# What may stand behind it: of what form it is, or whose, as in KEY_OPENAI.
_BEHIND = _words("""
    ID VALUE TEXT STRING URL URI BASE BASE64 B64 JSON DATA CONFIG HEADER ENC PEM LIST MATERIAL
    ENV VAR PLAIN PLAINTEXT CLEAR ENCRYPTED CONFIRM
    OLD NEW PROD DEV TEST STAGING CI LOCAL QA UAT PRIMARY SECONDARY DEFAULT BACKUP
    RO RW READ WRITE READONLY
    AWS AZURE GCP OCI S3 GCS BEDROCK VERTEX GITHUB GITLAB HF HUGGINGFACE NGC NVIDIA NVCR
    OPENAI ANTHROPIC MISTRAL GEMINI COHERE GROQ WANDB MLFLOW SLACK SENTRY DATADOG DOCKER PYPI NPM
    DB MYSQL POSTGRES REDIS MONGODB KAFKA VAULT LDAP SMTP SSH
""")
# Prefixes that give the words after them another meaning.
_HARMLESS = {
    "TOKEN": _words("""
        EOS BOS PAD UNK SEP CLS MASK STOP SPECIAL IMAGE AUDIO VIDEO NEXT PER FIRST LAST DRAFT
        MAX MIN NUM EACH START END EOT CALL PROMPT THINK INPUT OUTPUT
    """),
    "KEY": _words("""
        PUBLIC SORT PARTITION PRIMARY FOREIGN CACHE ROUTING HASH PER STOP KV LOOKUP SHARD GROUP
        LABEL ANNOTATION TAINT TOPOLOGY SELECTOR DEDUP INDEX METRIC AFFINITY WATERMARK
    """),
    "PASS": _words("SINGLE FORWARD BACKWARD FIRST SECOND ONE TWO BY"),
    "SIGNATURE": _words("MODEL FUNCTION"),
}
# A name with one of these words, as in PASSWORD_DB, holds one too, unless it ends so.
_PASSWORDS = _words("PASSWORD PASSWD PASSPHRASE")
_ABOUT_PASSWORDS = _words("""
    FILE PATH DIR NAME LENGTH POLICY REQUIRED ENABLED TIMEOUT DAYS HOST AUTHENTICATION HASH ROUNDS
""")
# Other words in the plural are counts and lists: MAX_TOKENS, SORT_KEYS.
_BEFORE_SEVERAL = _words("ACCESS API AUTH BEARER DB HF PRIVATE REFRESH UNSEAL")
# These hold a path or a switch as often as a credential.
_ALSO_PATHS = _words("KEY AUTH CREDENTIAL CREDENTIALS COOKIE CREDS KEYTAB PFX")
_PATH = re.compile(r"(/[A-Za-z0-9_.-]+){2,}")
# Clients of vLLM send "EMPTY" as the key if the server checks none.
_SWITCH = re.compile(r"true|false|yes|no|on|off|none|[01]|empty|dummy|not-needed", re.IGNORECASE)
_SPECIAL = re.compile(r"<[^<>\s]{1,60}>")  # a token of a tokenizer, or a place holder
_CONNECTIONS = (("CONNECTION", "STRING"), ("CONN", "STR"), ("SEED", "PHRASE"))
_OF_A_STORE = ("KMS", "KEY", "ID")  # which keeps the key to itself
_OF_TERRAFORM = ("TF", "TOKEN")  # the host follows


def is_name(name: str) -> bool:
    """Whether a variable of this name holds a credential.

    >>> [is_name(name) for name in ("OPENAI_KEY", "dbPass", "MAX_TOKENS", "HF_TOKEN_PATH")]
    [True, True, False, False]
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", spaced.upper()) if word]
    if tuple(words[-2:]) in _CONNECTIONS or tuple(words[:2]) == _OF_TERRAFORM:
        return True
    if tuple(words[-3:]) == _OF_A_STORE:
        return False
    while len(words) > 1 and (words[-1] in _BEHIND or re.fullmatch(r"V?[0-9]+", words[-1])):
        words.pop()
    if not words:
        return False
    last = re.sub(r"[0-9]+$", "", words[-1])
    if not _PASSWORDS.isdisjoint(words) and last not in _ABOUT_PASSWORDS:
        return True
    before = words[-2] if len(words) > 1 else ""
    if last not in _WORDS and before in _BEFORE_SEVERAL:
        last = last.removesuffix("S")
    if last in _WORDS:
        return before not in _HARMLESS.get(last, ())
    return bool(_JOINED.fullmatch(last)) or (len(last) > 8 and last.endswith(_ENDINGS))


def is_held(name: str, value: str) -> bool:
    """Whether a variable holds the credential in its name, and not its location."""
    if not value or _SWITCH.fullmatch(value) or _SPECIAL.fullmatch(value) or not is_name(name):
        return False
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    if words & _ALSO_PATHS and not words & {"SECRET", "ACCESS", "API", "APIKEY"}:
        return not _PATH.fullmatch(value)
    return True
