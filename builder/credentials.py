"""Credentials: which names and texts are one, so that none is written into a bundle or repeated.

Bundles are copied and kept, and messages end in logs. What is found is therefore refused with its
place, and `mask` is on the way of every diagnostic.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

MASK = "[credential]"

# The words at the end of a variable's name that say it holds one, and what may stand behind them.
_WORDS = frozenset(
    (
        *("TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASS", "PWD", "PASSPHRASE"),
        *(
            "PASSWORDS",
            "PASSCODE",
            "KEY",
            "APIKEY",
            "APIKEYS",
            "PRIVKEY",
            "SECRETKEY",
            "ACCESSKEY",
            "CREDS",
        ),
        *("CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION", "BEARER", "JWT", "PAT", "COOKIE"),
        *("DSN", "CONNSTR", "SAS", "SIGNATURE", "WEBHOOK", "PW", "PSWD", "PSK", "MNEMONIC", "OTP"),
        *("PASSWORT", "KENNWORT", "HTPASSWD", "BASICAUTH", "SESSIONID", "DOCKERCONFIGJSON"),
        *("PASSE", "MOTDEPASSE", "MDP", "CONTRASENA", "CLAVE", "SENHA", "WACHTWOORD", "SCHLUESSEL"),
    )
)
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
    "(?:PRIVATE|PRESHARED|ENCRYPTION|SIGNING|MASTER|SHARED|ACCOUNT|SERVICE|DEPLOY|CLIENT|SSH|SSL|TLS|GPG)KEY"
    "|(?:SSH|DB|PG|USER|ROOT|ADMIN|KEY|STORE|SMTP|LDAP|SQL|REDIS|MAIL|FTP|PROXY)(?:PASS|PWD|PW)"
)
_BEHIND = frozenset(
    (
        *("ID", "VALUE", "TEXT", "STRING", "URL", "URI", "BASE", "BASE64", "B64", "JSON", "DATA"),
        *("CONFIG", "HEADER", "ENC", "OLD", "NEW", "PROD", "DEV", "TEST", "STAGING", "RO", "RW"),
        *("PRIMARY", "SECONDARY", "DEFAULT", "ENV", "VAR", "PEM", "BACKUP", "LIST", "MATERIAL"),
        *("PLAIN", "PLAINTEXT", "CLEAR", "ENCRYPTED", "CONFIRM", "READ", "WRITE", "READONLY"),
        *("CI", "LOCAL", "QA", "UAT"),
        # Whose it is, where that stands last: KEY_OPENAI.
        *("AWS", "AZURE", "GCP", "OCI", "S3", "GCS", "BEDROCK", "VERTEX", "GITHUB", "GITLAB", "HF"),
        *("HUGGINGFACE", "NGC", "NVIDIA", "NVCR", "OPENAI", "ANTHROPIC", "MISTRAL", "GEMINI"),
        *(
            "COHERE",
            "GROQ",
            "WANDB",
            "MLFLOW",
            "SLACK",
            "SENTRY",
            "DATADOG",
            "DOCKER",
            "PYPI",
            "NPM",
        ),
        *("DB", "MYSQL", "POSTGRES", "REDIS", "MONGODB", "KAFKA", "VAULT", "LDAP", "SMTP", "SSH"),
    )
)
# What stands before them where they mean something else.
_HARMLESS = {
    "TOKEN": frozenset(
        (
            *("EOS", "BOS", "PAD", "UNK", "SEP", "CLS", "MASK", "STOP", "SPECIAL", "IMAGE"),
            *("AUDIO", "VIDEO", "NEXT", "PER", "FIRST", "LAST", "DRAFT", "MAX", "MIN", "NUM"),
            *("EACH", "START", "END", "EOT", "CALL", "PROMPT", "THINK"),
        )
    ),
    "KEY": frozenset(
        (
            *("PUBLIC", "SORT", "PARTITION", "PRIMARY", "FOREIGN", "CACHE", "ROUTING", "HASH"),
            *("PER", "STOP", "KV", "LOOKUP", "SHARD", "GROUP", "LABEL", "ANNOTATION", "TAINT"),
            *("TOPOLOGY", "SELECTOR", "DEDUP", "INDEX", "METRIC"),
        )
    ),
    "PASS": frozenset(("SINGLE", "FORWARD", "BACKWARD", "FIRST", "SECOND", "ONE", "TWO", "BY")),
    "SIGNATURE": frozenset(("MODEL", "FUNCTION")),
}
# A name with one of these words, as in PASSWORD_DB, holds one too, unless it ends so.
_PASSWORDS = frozenset(("PASSWORD", "PASSWD", "PASSPHRASE"))
_ABOUT_PASSWORDS = frozenset(
    (
        *("FILE", "PATH", "DIR", "NAME", "LENGTH", "POLICY", "REQUIRED", "ENABLED", "TIMEOUT"),
        *("DAYS", "HOST", "AUTHENTICATION", "HASH", "ROUNDS"),
    )
)
# Other words in the plural are counts and lists: MAX_TOKENS, SORT_KEYS.
_BEFORE_SEVERAL = frozenset(
    ("ACCESS", "API", "AUTH", "BEARER", "DB", "HF", "PRIVATE", "REFRESH", "UNSEAL")
)
# These hold a path or a switch as often as a credential.
_ALSO_PATHS = frozenset(("KEY", "AUTH", "CREDENTIAL", "CREDENTIALS", "COOKIE", "CREDS"))
_PATH = re.compile(r"(/[A-Za-z0-9_.-]+){2,}")
_SWITCH = re.compile(r"true|false|yes|no|on|off|none|[01]", re.IGNORECASE)
_SPECIAL = re.compile(r"<[^<>\s]{1,60}>")  # a token of a tokenizer, or a place holder
_CONNECTION = ("CONNECTION", "STRING")

# Mappings whose keys are names that others give.
_FREE = frozenset(("environment", "env", "attributes", "annotations", "variables", "parameters"))

# What services give out, by the letters that their documentations and public lists of secret
# scanners begin it with; at least 16 more follow, a digit among them.
_PREFIXES = (
    *("hf_oauth_", "hf_jwt_", "pcsk_", "esecret_", "sk-lf-", "amzn.mws.", "1//0"),
    *("EAACEdEose0cBA", "sq0atp-", "sq0csp-", "sk_prod_", "rk_prod_", "AVNS_", "PMAK-", "HRKU-"),
    *("pscale_tkn_", "pscale_pw_", "pscale_oauth_", "mdb_sa_sk_", "dt0c01.", "dt0s16."),
    *("CCIPAT_", "CCIPRJ_", "ATCTT3", "CLOJARS_", "CFPAT-", "xkeysib-", "xsmtpsib-"),
    *("shippo_live_", "glffct-", "glimt-", "glwt-", "sk.eyJ"),
)
# Names of folders, hosts and data sets begin so as well: only a run of letters and digits tells.
_SHORT_PREFIXES = (
    *("rpa_", "csk-", "tvly-", "LTAI", "AKID", "AQVN", "dbtc_", "sbp_", "ntn_", "figd_", "nfp_"),
    *("vcp_", "fo1_", "tfp_", "rdme_", "NRII-", "NRJS-", "NRRA-", "rootly_", "pnu_", "kpat_"),
    *("AKCp", "squ_", "sqp_", "sqa_", "bkua_", "ATBB", "gsk_", "r8_", "tgp_v1_", "fw_", "fw-"),
    *("pplx-", "pplx_", "xai-", "xai_", "lsv2_pt_", "lsv2_sk_", "wandb_v1_", "glsa_"),
    *("sk-", "pypi-", "dp.pt.", "dp.st.", "dp.ct."),
)
# Of base64, which may hold a slash.
_BASE64_PREFIXES = (
    *("ABSK", "bedrock-api-key-", "IQoJb3JpZ2lu", "FwoGZXIvYXdz", "cflt", "fm2_", "cmVmdGtuO"),
    *("ops_eyJ", "glc_", "RWRTY0Iy"),
    # A file of Docker's or of a service account of Google's, as a whole.
    *("eyJhdXRocyI6", "ewogICJhdXRocyI6", "ewoJImF1dGhzIjog", "eyJ0eXBlIjoic2VydmljZV9hY2NvdW50"),
    *("ewogICJ0eXBlIjogInNlcnZpY2VfYWNjb3VudC", "eyJ0eXBlIjogInNlcnZpY2VfYWNjb3VudC"),
)
_RUN = r"(?=[A-Za-z]{0,11}[0-9])(?=[0-9]{0,11}[A-Za-z])[A-Za-z0-9]{12}"
# A variable, a place holder or a path in the place of a credential, as the whole value.
_ROOTS = (
    "app|config|data|etc|home|mnt|models|opt|proc|root|run|secrets|shared|srv|tmp|usr|var|vault"
    "|workspace"
)
_PATHS = (
    rf"/(?:{_ROOTS})(?:/[\w.-]{{1,99}})+|(?:/[a-z][a-z_-]{{1,40}}){{2,}}/[\w.-]{{1,99}}"
    r"|(?:/[\w.-]{1,99})+\.[a-z]{2,5}"
)
_ASKED = r"(?:[_-](?:[A-Z]?[a-z]{1,15}|[A-Z]{2,15}))"
_PLACE_HOLDERS = (
    r"\*{3,}|\[[A-Za-z _.-]{1,60}\]|<[^<>\n\"']{1,80}>|\{\{[^{}\n]{1,99}\}\}"
    r"|(?i:none|null|change[_-]?(?:me|it))"
    rf"|(?i:your|change|replace){_ASKED}{{1,6}}"
)
# The default within a variable may be one itself.
_VARIABLE = r"\$(?:[A-Za-z_]\w{0,99}|\{(?![^}\n]{0,99}:-[^}\n]{0,99}[0-9])[^}\n\"']{1,199}\}\}?)"
_ELSEWHERE = (
    rf"[\"']?(?:\$\(|(?:{_VARIABLE}(?:[/:@.-](?:{_VARIABLE}|[\w.-]{{1,40}}))?"
    rf"|{_PLACE_HOLDERS}|{_PATHS})"
    r"(?=[\"'](?![A-Za-z0-9])|[`)\]}>.:\\|]{0,9}(?:[\s;,&\"']|$)))"
)
# Words and numbers as names of files, releases and objects have them, and their whole. Keys that
# are written in groups have no word of small letters, or groups of one length.
_PART = (
    r"(?>[a-z]{1,20})?+(?>(?:20[0-9]{6}|[0-9]{1,4})(?![0-9])"
    r"(?>rc[0-9]{1,3}|x[0-9]{1,3}b|[a-z]{1,20})?+)?+"
)
_NAME_END = r"(?![A-Za-z0-9%+/=_~.-])"
_GROUPED = "|".join(rf"(?:[a-z0-9]{{{n}}}[-_./]){{1,9}}[a-z0-9]{{{n}}}" for n in range(3, 9))
_NAME = (
    r"[\"']?(?=[a-z0-9_./-]{0,99}?(?<![a-z0-9])(?=[a-z]{0,19}[aeiou])[a-z]{3,20}(?![a-z0-9]))"
    rf"(?!(?=[a-z_./-]{{0,99}}(?!(?:19|20)[0-9]{{2}}(?![0-9]))[0-9])(?:{_GROUPED}){_NAME_END})"
    rf"(?>{_PART}(?:[-_./]{_PART})++){_NAME_END}"
)
# What follows "basic" in a sentence is no base64, whose length is a multiple of four.
_TITLE = (
    rf"(?!(?:[A-Za-z0-9+/]{{4}})+{_NAME_END})"
    rf"[A-Za-z0-9]{{1,20}}(?:[-.][A-Za-z0-9]{{1,12}})*+{_NAME_END}"
)


def _begun(prefixes: tuple[str, ...]) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, prefixes))})"


_SHAPES = (
    _begun(_PREFIXES) + r"(?=[A-Za-z_=+.-]{0,300}[0-9])[A-Za-z0-9_=+.-]{16,}",
    _begun(_SHORT_PREFIXES) + rf"(?=[A-Za-z0-9_=+.-]{{0,300}}?{_RUN})[A-Za-z0-9_=+.-]{{16,}}",
    _begun(_BASE64_PREFIXES) + rf"(?=[A-Za-z0-9_=+/-]{{0,300}}?{_RUN})[A-Za-z0-9_=+/-]{{20,}}",
    r"\be2b_[a-f0-9]{40}\b|\bphx_[A-Za-z0-9]{32,}",
    r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"\bapi_org_[A-Za-z0-9]{20,}",
    r"\bnvapi-[A-Za-z0-9_-]{20,}",  # NVIDIA
    r"\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas)-[A-Za-z0-9_.-]{16,}"
    r"|\bGR1348941[A-Za-z0-9_-]{16,}",  # GitLab
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",  # AWS
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-[0-9]-[A-Za-z0-9-]{10,}",  # Slack
    r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,}",
    r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}",
    r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|\bwhsec_[A-Za-z0-9]{16,}",  # Stripe
    r"\bGOOG1E[A-Z0-9]{50,}"
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{20,}",  # Google
    r"\bnpm_[A-Za-z0-9]{30,}|\brubygems_[a-f0-9]{40,}",
    r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",  # Docker
    r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}|\$oauthtoken:[A-Za-z0-9+/=_-]{16,}"  # Vault, NGC
    r"|\bs\.(?=[A-Za-z]{0,23}[0-9])(?=[a-z0-9]{0,23}[A-Z])[A-Za-z0-9]{24}\b",
    r"\bAQ[A-Za-z0-9+/]{36}==(?![A-Za-z0-9+/=])",  # Ceph
    r"\bdapi[a-f0-9]{32}\b|\bdkea[a-f0-9]{32}\b",  # Databricks
    r"\bdo[opr]_v1_[a-f0-9]{40,}",  # DigitalOcean
    r"\bsntr[yu]s_[A-Za-z0-9+/=_-]{20,}|\bNRAK-[A-Z0-9]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,99}\.[A-Za-z0-9_-]{16,}|\bkey-[a-f0-9]{32}\b",  # SendGrid, Mailgun
    r"\bATATT3[A-Za-z0-9_=-]{20,}|\blin_api_[A-Za-z0-9]{20,}|\bshp(?:at|ca|pa|ss)_[a-f0-9]{32}",
    r"\btskey-[a-z]{1,20}-[A-Za-z0-9-]{16,}|\bpul-[a-f0-9]{40}\b",
    r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}|\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}",  # Telegram
    # Azure: applications, DevOps, OpenAI and storage.
    r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{30,}"
    r"|\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b|\b[A-Za-z0-9]{52}JQQJ9[A-Za-z0-9]{20,}"
    r"|(?<![A-Za-z0-9+/-])[A-Za-z0-9+/]{86}==",
    r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{64}|\bpat\.[A-Za-z0-9_-]{22}\.[a-f0-9]{24}\.",
    r"\bsha256~[A-Za-z0-9_-]{43}|\bv1\.0-[a-f0-9]{24}-[a-f0-9]{100,}",  # OpenShift, Cloudflare
    r"\bSK[a-f0-9]{32}\b|\b[a-f0-9]{32}-us[0-9]{1,2}\b|\bsk_[a-f0-9]{40,}|\bsecret_[A-Za-z0-9]{43}\b",
    r"\bAPI-[A-Z0-9]{26}\b|\bA3-[A-Z0-9]{6}-[A-Z0-9]{11}(?:-[A-Z0-9]{5}){3}\b",
    r"\bK10[a-f0-9]{64}::\S{8,}|\bt1\.[A-Za-z0-9_=-]{10,999}\.[A-Za-z0-9_=-]{86}",
    r"webhook\.office\.com/webhookb2/\S{20,}|hooks\.zapier\.com/hooks/catch/\S{8,}",
    # Hashes of passwords, as files of users hold them.
    r"\$(?:2[abxy]|[1567]|apr1|y|gy|argon2(?:id|i|d)|scrypt|pbkdf2[a-z0-9-]{0,10})\$[^\s'\"]{20,}",
    r"\beyJ[A-Za-z0-9_-]{8,999}\.[A-Za-z0-9_-]{8,9999}\.[A-Za-z0-9_-]*",  # JSON web tokens
    r"-----? ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-----?"
    r"(?:[^-]{0,9999}-----? ?END [A-Z0-9 ]{0,60}-----?)?",
    # The same in base64, but for certificates and public keys.
    r"\bLS0tLS1CRUdJTi(?!BDRVJUSUZJQ0FURS|BQVUJMSUMgS0VZ)[A-Za-z0-9+/=\s]{20,}",
    r"PuTTY-User-Key-File-[0-9]",
    # Private keys without their first line: of OpenSSH, RSA, elliptic curves and PKCS #12.
    r"\bb3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=\s]{20,}|\bMC4CAQAwBQYDK2V[A-Za-z0-9+/=]{20,}"
    r"|\bMII[A-Za-z0-9+/]{2}[AQgw]IBA(?:DANBgkqhkiG9w0BAQEFA|AKC|zCC)[A-Za-z0-9+/=\s]{20,}"
    r"|\bM(?:HcCAQEEI|IGHAgEAMBMGByqGSM49|IGkAgEBBD)[A-Za-z0-9+/=\s]{20,}",
    # Names and passwords in URLs and before the host of an image; a token in the place of a name.
    r":/{1,2}[^/\s:@]{0,999}:[^/\s@]{1,999}@|://[^/\s:@]{16,999}@",
    r"(?:^|(?<=\s))[^/\s:@]{1,99}:[^/\s@]{1,999}@(?!sha256:)[\w-]+\.[\w.-]+",
)
# Behind a word that says so: parts of connection strings, queries, headers and command lines.
_SPOKEN_OF = (
    r"(?i:\b(?:account_?key|shared_?access_?(?:key|signature)|client_?secret|access_?token"
    r"|refresh_?token|password|passwd|pwd|api[_-]?key|secret[_-]?key)\s?=\s?)"
    rf"(?!{_ELSEWHERE})[^\s;&,]{{4,}}",
    r"(?i:[?&;](?:sig|signature|x-amz-signature|x-goog-signature|token|key|auth|secret)=)"
    rf"(?!{_NAME})[A-Za-z0-9%+/=_-]{{12,}}|"
    r"(?i:[?&]code=)[A-Za-z0-9%+/=_-]{40,}",
    r"\bcurl\b[^\n]{0,200}\s(?:-u|--user)[ =]?[^\s:]{1,99}:(?!\$)\S{4,}"
    r"|\b(?:sshpass|(?:docker|podman|helm|skopeo|oras)[^\n]{0,100}? login\b[^\n]{0,200}?)"
    r"\s-p\s*(?![\"']?\$|-)\S{4,}"
    # A space would end the option; docker's -p gives ports.
    r"|\bmysql\w*\b[^\n]{0,200}?\s-p(?![\"']?\$|-|[0-9.:]{1,30}(?:/\w{1,4})?(?:\s|$))\S{4,}"
    r"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S{4,}",
    # The same words as keys of YAML and of files of settings; a digit tells it from a sentence.
    r"(?i:\b(?:[a-z_-]{0,40}secret_?access_?key|api_?key|private_?key|client-key-data)"
    rf"\s?[:=]\s{{0,3}})(?!{_ELSEWHERE})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{12,}",
    r"(?i:\b[a-z_-]{0,40}(?:password|passwd)"
    rf"\s?[:=]\s{{0,3}})(?!{_ELSEWHERE})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{8,}",
    r"(?i:\b(?<!existing-)(?<!pull-)(?!existing|image_?pull)(?:[a-z_-]{0,40}secret"
    r"|_?(?:auth|access|refresh|api|session)?_?token|_?auth)"
    rf"\s?[:=]\s{{0,3}})(?!{_ELSEWHERE})(?!{_NAME})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{12,}",
    rf"(?i:--(?:api-key|password|token|auth-token|secret)[ =])(?!{_ELSEWHERE})\S{{6,}}",
    r"(?i:\b(?:(?:proxy-)?authorization|x-api-key|api-key|cookie(?=\s?:\s?[^\s=;]{1,99}=)"
    r"|private-token|job-token|x-[a-z-]{1,40}-token|ocp-apim-subscription-key)\s?:\s?"
    rf"(?:(?:bearer|basic|token|apikey|negotiate) )?+)(?!{_ELSEWHERE})\S{{8,}}",
    rf"(?i:\b(?:bearer |basic (?!{_TITLE})))(?!{_NAME})"
    r"(?=[a-z+/=_.~-]{0,99}[0-9A-Z])[A-Za-z0-9+/=_.~-]{16,}",
    r"(?i:[\"'](?:auth|token|secret|identitytoken)\\{0,3}[\"']"
    rf"\s*:\s*\\{{0,3}}(?=[\"']))(?!{_ELSEWHERE})(?!{_NAME})[\"'][^\"'\s]{{4,}}[\"']",
    r"(?i:[\"'][a-z0-9_.-]{0,40}(?:password|passwd|api_?key|client_secret|access_?key|access_?token)"
    rf"\\{{0,3}}[\"']\s*:\s*\\{{0,3}}(?=[\"']))(?!{_ELSEWHERE})[\"'][^\"'\s]{{4,}}[\"']",
    r"\bpassw(?:or)?d:\S{6,}",
)
# Without one of these none of them can be there.
_SPEAKS = (
    r"(?i:(?:key|key-data|sig|signature|secret|token|passw(?:or)?d|pwd|auth|authorization|code|cookie)"
    r"[\\\"']{0,4}\s*[:=]|--(?:api-key|password|token|auth-token|secret) |bearer |basic )"
    r"|curl|sshpass|login|mysql"
)
_ASSIGNED = rf"\b([A-Za-z][A-Za-z0-9_]{{0,99}})=(?!{_ELSEWHERE})[\"']?([^\s;&,\"']{{4,}})"


def is_name(name: str) -> bool:
    """Whether a variable of this name holds a credential.

    >>> [is_name(name) for name in ("OPENAI_KEY", "dbPass", "MAX_TOKENS", "HF_TOKEN_PATH")]
    [True, True, False, False]
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", spaced.upper()) if word]
    if tuple(words[-2:]) == _CONNECTION:
        return True
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


@cache
def _any_of(*shapes: str) -> re.Pattern[str]:
    """What any of the shapes matches: too large to be compiled by commands that say nothing."""
    return re.compile("|".join(f"(?:{shape})" for shape in shapes))


@lru_cache(maxsize=2_000)
def mask(text: str) -> str:
    """The text with every credential in it replaced."""
    if not text.isascii() and (plain := unicodedata.normalize("NFKC", text)) != text:
        # Other forms of the same letters hide no credential.
        return masked if (masked := mask(plain)) != plain else text
    if _any_of(_SPEAKS).search(text):
        text = _any_of(*_SPOKEN_OF).sub(MASK, text)
    text = _any_of(*_SHAPES).sub(MASK, text)
    if "=" not in text:
        return text
    return re.sub(
        _ASSIGNED, lambda row: f"{row[1]}={MASK}" if _is_assigned(row[1], row[2]) else row[0], text
    )


def _is_assigned(name: str, value: str) -> bool:
    """Whether a text gives a credential to a name; small letters as in a URL name objects too."""
    is_variable = name != name.lower()
    return _is_held(name, value) and (is_variable or not re.fullmatch(_NAME, value))


def shown(value: Any, path: str = "", length: int = 60) -> str:
    """The beginning of a value that is wrong, as an error may repeat it."""
    if any(found(value, path)):
        return MASK
    return mask(str(value))[:length]


def found(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The place of every credential in plain data, and what is wrong with it."""
    if isinstance(document, str):
        if mask(document) != document:
            yield path, "holds a credential, which would be in every bundle"
        elif any(_is_held(name, document) for name in _variables(path)):
            yield path, "is by its name a credential, which a bundle must not hold"
    elif isinstance(document, Mapping):
        name, value = document.get("name"), document.get("value")
        if isinstance(name, str) and isinstance(value, str) and _is_held(name, value):
            yield f"{path}.value", "is by its name a credential, which a bundle must not hold"
        for key, inner in document.items():
            yield from found(inner, f"{path}.{key}".strip("."))
            yield from found(str(key), path)
    elif isinstance(document, list):
        for index, inner in enumerate(document):
            yield from found(inner, f"{path}.{index}")
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield from found(str(document), path)


def _variables(path: str) -> list[str]:
    """The names on a path that a user gave."""
    keys = path.split(".")
    free = next((at for at, key in enumerate(keys) if key in _FREE), len(keys))
    return keys[free + 1 :]


def _is_held(name: str, value: str) -> bool:
    """Whether a variable holds the credential that its name speaks of, not where it is."""
    if not value or _SWITCH.fullmatch(value) or _SPECIAL.fullmatch(value) or not is_name(name):
        return False
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    if words & _ALSO_PATHS and not words & {"SECRET", "ACCESS", "API", "APIKEY"}:
        return not _PATH.fullmatch(value)
    return True
