"""Shapes of credentials in a text, as regular expressions, and what only looks like one."""

from __future__ import annotations

import re

# What services give out, by the letters that their documentations and public lists of secret
# scanners begin it with; at least 16 more follow, a digit among them.
_PREFIXES = """
    hf_oauth_ hf_jwt_ pcsk_ esecret_ sk-lf- amzn.mws. 1//0 EAACEdEose0cBA sq0atp- sq0csp-
    sk_prod_ rk_prod_ AVNS_ PMAK- HRKU- pscale_tkn_ pscale_pw_ pscale_oauth_ mdb_sa_sk_
    dt0c01. dt0s16. CCIPAT_ CCIPRJ_ ATCTT3 CLOJARS_ CFPAT- xkeysib- xsmtpsib- shippo_live_
    glffct- glimt- glwt- sk.eyJ
    AIK_CI_ AIK_SECRET_ apify_api_ BBDC- AstraCS: dvc_client_ dvc_mobile_ dvc_server_ SWMTKN-1-
    duffel_live_ duffel_test_ FLWSECK- FLWSECK_TEST- FLWPUBK_TEST- s-s4t2ud- s-s4t2af- mlsn. llx-
    mergify_application_key_ os_v2_org_ os_v2_app_ api_live. api_live_us. api_live_ca.
    pdl_live_apikey_ persona_production_ polar_at_ polar_oat_ polar_pat_ prf_cli_ ramp_sec_
    samsara_api_ sntryu_ sm_aat_ sm_pat_ sm_sat_ packagist_ort_ packagist_out_ packagist_acs_
    sb_secret_ xnd_production_ PMAT- hcaik_ hcalk_ hcxik_ hcxlk_ xaat- xapt- pylf_v1_
    sktsec_ sk-helicone- sgp_local_ CCDB1_ FlyV1 gcntfy- incoming+
"""
# Names of folders, hosts and data sets begin so as well: only a run of letters and digits tells.
_SHORT_PREFIXES = """
    rpa_ csk- tvly- LTAI AKID AQVN dbtc_ sbp_ ntn_ figd_ nfp_ vcp_ fo1_ tfp_ rdme_
    NRII- NRJS- NRRA- rootly_ pnu_ kpat_ AKCp squ_ sqp_ sqa_ bkua_ ATBB gsk_ r8_ tgp_v1_
    p8e- cnvca csa_ ddp_ ddo_ cog_ EZAK EZTK essu_ EAAM EAAC fio-u- ico- ion_ lip_ napi_ pina_
    phc_ rnd_ re_ tk-us- sgp_ tss_ unkey_ ucat_ vtwn_ vca_ vck_ vci_ vcr_ waka_ zpka_ nyk_ jina_
    snyk_ apk_ sk_car_ cfut_ cfat_ cfk_ BSA EXO
    fw_ fw- pplx- pplx_ xai- xai_ lsv2_pt_ lsv2_sk_ wandb_v1_ glsa_ sk- pypi- dp.pt. dp.st. dp.ct.
"""
# Of base64, which may hold a slash; the last five are a whole file of Docker's or of a service
# account of Google's.
_BASE64_PREFIXES = """
    configcat-sdk-1/ SWMKEY-1- AQ.Ab8RN6 eyJrIjoi cmVmd
    ABSK bedrock-api-key- IQoJb3JpZ2lu FwoGZXIvYXdz cflt fm2_ cmVmdGtuO ops_eyJ glc_ RWRTY0Iy
    eyJhdXRocyI6 ewogICJhdXRocyI6 ewoJImF1dGhzIjog
    eyJ0eXBlIjoic2VydmljZV9hY2NvdW50 ewogICJ0eXBlIjogInNlcnZpY2VfYWNjb3VudC
    eyJ0eXBlIjogInNlcnZpY2VfYWNjb3VudC
"""
_RUN = r"(?=[A-Za-z]{0,11}[0-9])(?=[0-9]{0,11}[A-Za-z])[A-Za-z0-9]{12}"
# A variable, a placeholder or a path instead of a credential, as the whole value.
_ROOTS = (
    "app|config|data|etc|home|mnt|models|opt|proc|root|run|secrets|shared|srv|tmp|usr|var|vault"
    "|workspace"
)
_PATHS = (
    rf"/(?:{_ROOTS})(?:/[\w.-]{{1,99}})*|(?:/[a-z][a-z_-]{{1,40}}){{2,}}/[\w.-]{{1,99}}"
    r"|(?:/[\w.-]{1,99})+\.[a-z]{2,5}"
)
_ASKED = r"(?:[_-](?:[A-Z]?[a-z]{1,15}|[A-Z]{2,15}))"
_PLACE_HOLDERS = (
    r"\*{3,}|\[[A-Za-z _.-]{1,60}\]|<[^<>\n\"']{1,80}>|\{\{[^{}\n]{1,99}\}\}"
    r"|(?i:none|null|empty|dummy|not-needed|change[_-]?(?:me|it))"
    rf"|(?i:your|change|replace){_ASKED}{{1,6}}"
)
# Where a store of secrets, a file or the environment has it.
_REFERENCES = (
    r"file:/{0,3}[\w./-]{1,199}|env:\w{1,99}|vault:[\w./-]{1,199}#[\w-]{1,99}"
    r"|arn:aws[a-z-]{0,10}:[a-z]{1,20}:[\w:/.-]{1,199}|op://[\w./-]{1,199}"
)
# The default within a variable may be one itself.
_VARIABLE = r"\$(?:[A-Za-z_]\w{0,99}|\{(?![^}\n]{0,99}:-[^}\n]{0,99}[0-9])[^}\n\"']{1,199}\}\}?)"
_ELSEWHERE = (
    rf"[\"']?(?:\$\(|(?:{_VARIABLE}(?:[/:@.-](?:{_VARIABLE}|[\w.-]{{1,40}}))?"
    rf"|{_PLACE_HOLDERS}|{_PATHS}|{_REFERENCES})"
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
NAME = (
    r"[\"']?(?=[a-z0-9_./-]{0,99}?(?<![a-z0-9])(?=[a-z]{0,19}[aeiou])[a-z]{3,20}(?![a-z0-9]))"
    rf"(?!(?=[a-z_./-]{{0,99}}(?!(?:19|20)[0-9]{{2}}(?![0-9]))[0-9])(?:{_GROUPED}){_NAME_END})"
    rf"(?>{_PART}(?:[-_./]{_PART})++){_NAME_END}"
)
# What follows "basic" in a sentence is no base64, whose length is a multiple of four.
_TITLE = (
    rf"(?!(?:[A-Za-z0-9+/]{{4}})+{_NAME_END})"
    rf"[A-Za-z0-9]{{1,20}}(?:[-.][A-Za-z0-9]{{1,12}})*+{_NAME_END}"
)


def _begun(prefixes: str) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, prefixes.split()))})"


SHAPES = (
    _begun(_PREFIXES) + r"(?=[A-Za-z_=+.-]{0,300}[0-9])[A-Za-z0-9_=+.-]{16,}",
    _begun(_SHORT_PREFIXES) + rf"(?=[A-Za-z0-9_=+.-]{{0,300}}?{_RUN})[A-Za-z0-9_=+.-]{{16,}}",
    _begun(_BASE64_PREFIXES) + rf"(?=[A-Za-z0-9_=+/-]{{0,300}}?{_RUN})[A-Za-z0-9_=+/-]{{20,}}",
    r"\be2b_[a-f0-9]{40}\b|\bphx_[A-Za-z0-9_-]{32,}",
    r"\bfc-[a-f0-9]{32}\b|\bkey_[a-f0-9]{64}\b|\boy2[a-z0-9]{43}\b|\b4b1d[A-Za-z0-9]{38}\b",
    r"\b[a-f0-9]{32}\.[A-Za-z0-9]{16}\b|\b_gitlab_session=[a-f0-9]{32}",  # Zhipu, GitLab
    r"\b[0-9]{15,16}\|[A-Za-z0-9_-]{27,40}\b|\b00[A-Za-z0-9]{13}![A-Za-z0-9._-]{80,}",
    r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"\bapi_org_[A-Za-z0-9]{20,}",
    r"\bnvapi-[A-Za-z0-9_-]{20,}",  # NVIDIA
    r"\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas)-[A-Za-z0-9_.-]{16,}"
    r"|\bGR1348941[A-Za-z0-9_-]{16,}",  # GitLab
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",  # AWS
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-[0-9]-[A-Za-z0-9-]{10,}"  # Slack
    r"|\bxox[cd]-[A-Za-z0-9%+/-]{20,}|\bxoxe\.xox[bp]-[A-Za-z0-9-]{20,}",
    r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,}",
    r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}",
    r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|\bwhsec_[A-Za-z0-9]{16,}",  # Stripe
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
    r"\bATATT3[A-Za-z0-9_=-]{20,}|\blin_api_[A-Za-z0-9]{20,}|\bshp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}",
    r"\btskey-[a-z]{1,20}-[A-Za-z0-9-]{16,}|\bpul-[a-f0-9]{40}\b",
    r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}|\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}",  # Telegram
    # Azure: applications, DevOps, OpenAI and storage.
    r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{30,}"
    r"|\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b|\b[A-Za-z0-9]{52}JQQJ9[A-Za-z0-9]{20,}"
    r"|(?<![A-Za-z0-9+/-])[A-Za-z0-9+/]{86}==",
    r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{64}|\bpat\.[A-Za-z0-9_-]{22}\.[a-f0-9]{24}\.",
    r"\bsha256~[A-Za-z0-9_-]{43}|\bv1\.0-[a-f0-9]{24}-[a-f0-9]{100,}",  # OpenShift, Cloudflare
    r"\bSK[A-Fa-f0-9]{32}\b|\b[a-f0-9]{32}-us[0-9]{1,2}\b|\bsk_[a-f0-9]{40,}|\bsecret_[A-Za-z0-9]{43}\b",
    r"\bAPI-[A-Z0-9]{26}\b|\bA3-[A-Z0-9]{6}-[A-Z0-9]{5,6}-?[A-Z0-9]{5,6}(?:-[A-Z0-9]{5}){3}\b",
    r"\bK10[a-f0-9]{64}::\S{8,}|\bt1\.[A-Za-z0-9_=-]{10,999}\.[A-Za-z0-9_=-]{86}",
    r"webhook\.office\.com/webhookb2/\S{20,}|hooks\.zapier\.com/hooks/catch/\S{8,}",
    # Hashes of passwords, as files of users hold them.
    r"\$(?:2[abxy]|[1567]|apr1|y|gy|argon2(?:id|i|d)|scrypt|pbkdf2[a-z0-9-]{0,10})\$[^\s'\"]{20,}",
    r"\beyJ[A-Za-z0-9_-]{8,999}\.[A-Za-z0-9_-]{8,9999}\.[A-Za-z0-9_-]*",  # JSON web tokens
    r"-----? ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-----?"
    r"(?:[^-]{0,9999}-----? ?END [A-Z0-9 ]{0,60}-----?)?",
    # The same in base64, but for certificates and public keys.
    r"\bLS0tLS1CRUdJTi(?!BDRVJUSUZJQ0FURS|BQVUJMSUMgS0VZ)[A-Za-z0-9+/=\s]{20,}"
    r"|\bCi0tLS0tQkVHSU4g(?!Q0VSVElGSUNBVE|UFVCTElDIEtFW)[A-Za-z0-9+/=\s]{20,}",
    r"PuTTY-User-Key-File-[0-9]",
    # Private keys without their first line: of OpenSSH, RSA, elliptic curves and PKCS #12.
    r"\bb3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=\s]{20,}|\bMC4CAQAwBQYDK2V[A-Za-z0-9+/=]{20,}"
    r"|\bMII[A-Za-z0-9+/]{2}[AQgw]IBA(?:DANBgkqhkiG9w0BAQEFA|AKC|zCC)[A-Za-z0-9+/=\s]{20,}"
    r"|\bM(?:HcCAQEEI|IGHAgEAMBMGByqGSM49|IGkAgEBBD)[A-Za-z0-9+/=\s]{20,}",
    # Names and passwords in URLs and before the host of an image; a token instead of a name.
    r":/{1,2}[^/\s:@]{0,999}:[^/\s@]{1,999}@|://[^/\s:@]{16,999}@",
    r"(?:^|(?<=\s))[^/\s:@]{1,99}:[^/\s@]{1,999}@(?!sha256:)[\w-]+\.[\w.-]+",
)
_GIVES = r"\s?(?:=>|:=|[:=])\s{0,3}"  # between a key and its value
# Behind a word that says so: parts of connection strings, queries, headers and command lines.
SPOKEN_OF = (
    r"(?i:\b(?:account_?key|shared_?access_?(?:key|signature)|client_?secret|access_?token"
    r"|refresh_?token|password|passwd|pwd|api[_-]?key|secret[_-]?key)\s?=\s?)"
    rf"(?!{_ELSEWHERE})[^\s;&,]{{4,}}",
    r"(?i:[?&;](?:sig|signature|x-amz-signature|x-goog-signature|token|key|auth|secret)=)"
    rf"(?!{NAME})[A-Za-z0-9%+/=_-]{{12,}}|"
    r"(?i:[?&]code=)[A-Za-z0-9%+/=_-]{40,}",
    r"\bcurl\b[^\n]{0,200}\s(?:-u|--user)[ =]?[^\s:]{1,99}:(?!\$)\S{4,}"
    r"|\b(?:sshpass|(?:docker|podman|helm|skopeo|oras)[^\n]{0,100}? login\b[^\n]{0,200}?)"
    r"\s-p\s*(?![\"']?\$|-)\S{4,}"
    # A space would end the option; docker's -p gives ports.
    r"|\bmysql\w*\b[^\n]{0,200}?\s-p(?![\"']?\$|-|[0-9.:]{1,30}(?:/\w{1,4})?(?:\s|$))\S{4,}"
    r"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S{4,}"
    r"|\b(?:redis-cli\b[^\n]{0,200}?\s-a|mongo\w*\b[^\n]{0,200}?\s-p|ldap\w+\b[^\n]{0,200}?\s-w"
    r"|az login\b[^\n]{0,200}?\s-p|htpasswd\s+-\w*b\w*\s+\S+\s+\S+|wandb login)"
    r"\s+(?![\"']?\$|-)\S{4,}"
    rf"|--from-literal[ =][^\s=]{{1,99}}=(?!{_ELSEWHERE})\S{{4,}}"
    r"|\s-pass(?:in|out)?\s+pass:(?!\$)\S{4,}|\bjdbc:oracle:\w+:[^\s/@]{1,99}/[^\s@]{1,99}@",
    # The same words as keys of YAML and of files of settings; a digit tells it from a sentence.
    r"(?i:\b(?:[a-z_-]{0,40}secret_?access_?key|api_?key|private_?key|client-key-data"
    r"|(?:api|app|client|consumer|oauth|shared)[_-]?secret|(?:access|auth|bearer|refresh)[_-]?token)"
    rf"{_GIVES})(?!{_ELSEWHERE})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{12,}",
    r"(?i:\b[a-z_-]{0,40}(?:password|passwd|passphrase)"
    rf"{_GIVES})(?!{_ELSEWHERE})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{8,}",
    r"(?i:\b(?<!existing-)(?<!pull-)(?!existing|image_?pull)(?:[a-z_-]{0,40}secret(?:_?key)?"
    r"|_?(?:auth|access|refresh|api|session)?_?token|_?auth)"
    rf"{_GIVES})(?!{_ELSEWHERE})(?!{NAME})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{12,}",
    r"(?i:--(?:token|secret|(?:[a-z]{1,20}[_-]){0,3}"
    r"(?:api[_-]?key|password|passwd|passphrase|(?:access|auth|bearer|hf)[_-]token))[ =])"
    rf"(?!{_ELSEWHERE})\S{{6,}}",
    rf"(?i:<\w{{0,40}}(?:password|passwd|secret|token|api_?key)>)(?!{_ELSEWHERE})[^<>\s]{{4,}}</",
    r"(?i:\b(?:(?:proxy-)?authorization|x-api-key|api-key|cookie(?=\s?:\s?[^\s=;]{1,99}=)"
    r"|private-token|job-token|x-[a-z-]{1,40}-(?:token|team)|ocp-apim-subscription-key)\s?[:=]\s?"
    rf"(?:(?:bearer|basic|token|apikey|negotiate) )?+)(?!{_ELSEWHERE})\S{{8,}}",
    rf"(?i:\b(?:bearer |basic (?!{_TITLE})))(?!{NAME})"
    r"(?=[a-z+/=_.~-]{0,99}[0-9A-Z])[A-Za-z0-9+/=_.~-]{16,}",
    r"(?i:[\"'](?:auth|token|secret|identitytoken)\\{0,3}[\"']"
    rf"\s*:\s*\\{{0,3}}(?=[\"']))(?!{_ELSEWHERE})(?!{NAME})[\"'][^\"'\s]{{4,}}[\"']",
    r"(?i:[\"'][a-z0-9_.-]{0,40}(?:password|passwd|api_?key|client_secret|access_?key|access_?token)"
    rf"\\{{0,3}}[\"']\s*:\s*\\{{0,3}}(?=[\"']))(?!{_ELSEWHERE})[\"'][^\"'\s]{{4,}}[\"']",
    r"\bpassw(?:or)?d:\S{6,}",
)
# Without one of these none of them can be there.
SPEAKS = (
    r"(?i:(?:key|key-data|sig|signature|secret|token|passw(?:or)?d|passphrase|pwd|auth|authorization"
    r"|code|cookie|team)[\\\"']{0,4}\s*[:=]|bearer |basic "
    r"|--[a-z_-]{0,60}(?:key|passw(?:or)?d|passphrase|token|secret) )"
    r"|curl|sshpass|login|mysql|redis-cli|mongo|ldap|htpasswd|literal|pass:|jdbc|</"
)
ASSIGNED = rf"\b([A-Za-z][A-Za-z0-9_]{{0,99}})=(?!{_ELSEWHERE})[\"']?([^\s;&,\"']{{4,}})"
