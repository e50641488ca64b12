"""Credentials of every common shape: none is written into a bundle, and no error repeats one."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import credentials, pipeline
from builder.credentials import is_name
from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.facts import release
from tests.conftest import ROOT
from tests.security.attacks import survive

# None of them is real.
HEX, BASE64, WORD = "0a1b2c3d" * 8, "aB3dE5gH7jK9" * 6, "correct-horse-staple"
DRAWN = "q7RkZ2mW9xLp4TbV8nYc3HsD"  # as machines draw them
PEM = "-----BEGIN {}PRIVATE KEY-----\nMIIEvQIBADANBgkq\n-----END {}PRIVATE KEY-----\n"
TEXTS = {
    "Hugging Face": f"hf_{BASE64[:34]}",
    "Hugging Face, organisation": f"api_org_{BASE64[:34]}",
    "NVIDIA": f"nvapi-{BASE64[:40]}",
    "GitHub, classic": f"ghp_{BASE64[:36]}",
    "GitHub, app": f"ghs_{BASE64[:36]}",
    "GitHub, fine-grained": f"github_pat_{BASE64[:22]}_{BASE64[:40]}",
    "GitLab": f"glpat-{BASE64[:20]}",
    "GitLab, deploy": f"gldt-{BASE64[:20]}",
    "AWS key id": "AKIA" + "A1B2" * 4,
    "AWS temporary key id": "ASIA" + "A1B2" * 4,
    "Slack": f"xoxb-{BASE64[:24]}",
    "Slack, app": f"xapp-1-{BASE64[:24]}",
    "Slack, webhook": f"https://hooks.slack.com/services/T0/B0/{BASE64[:24]}",
    "Discord, webhook": f"https://discord.com/api/webhooks/123456/{BASE64[:40]}",
    "OpenAI": f"sk-{BASE64[:48]}",
    "OpenAI, project": f"sk-proj-{BASE64[:48]}",
    "Anthropic": f"sk-ant-api03-{BASE64[:48]}",
    "Stripe": f"sk_live_{BASE64[:24]}",
    "Google API": f"AIza{BASE64[:35]}",
    "Google OAuth": f"ya29.{BASE64[:40]}",
    "npm": f"npm_{BASE64[:36]}",
    "PyPI": f"pypi-{BASE64[:60]}",
    "Docker": f"dckr_pat_{BASE64[:27]}",
    "Vault": f"hvs.{BASE64[:40]}",
    "Databricks": f"dapi{HEX[:32]}",
    "DigitalOcean": f"dop_v1_{HEX}",
    "Groq": f"gsk_{BASE64[:48]}",
    "Replicate": f"r8_{BASE64[:37]}",
    "Grafana": f"glsa_{BASE64[:32]}",
    "SendGrid": f"SG.{BASE64[:22]}.{BASE64[:43]}",
    "Mailgun": f"key-{HEX[:32]}",
    "Atlassian": f"ATATT3x{BASE64[:40]}",
    "Tailscale": f"tskey-auth-{BASE64[:20]}",
    "Telegram": f"123456789:AA{BASE64[:33]}",
    "JSON web token": f"eyJ{BASE64[:20]}.eyJ{BASE64[:40]}.{BASE64[:43]}",
    "PEM": PEM.format("", ""),
    "PEM, RSA": PEM.format("RSA ", "RSA "),
    "PEM, OpenSSH": PEM.format("OPENSSH ", "OPENSSH "),
    "PEM, encrypted": PEM.format("ENCRYPTED ", "ENCRYPTED "),
    "PEM in base64": base64.b64encode(PEM.format("EC ", "EC ").encode()).decode(),
    "PGP": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "basic auth in a URL": f"https://user:{WORD}@registry.example/x",
    "password alone in a URL": f"redis://:{WORD}@cache.example:6379/0",
    "token as user of a URL": f"https://{BASE64[:40]}@git.example/x.git",
    "database": f"postgresql://app:{WORD}@db.example:5432/app",
    "before the host of an image": f"user:{WORD}@registry.example/x",
    "Azure storage": f"AccountName=x;AccountKey={BASE64}==;EndpointSuffix=core",
    "ODBC": f"Server=db;Uid=sa;Pwd={WORD};",
    "shared access signature": f"https://x.blob.example/c?sv=2022&sig={BASE64[:43]}%3D",
    "signed URL": f"https://s3.example/x?X-Amz-Signature={HEX}",
    "header": f"Authorization: Bearer {BASE64[:30]}",
    "basic header": f"Authorization: Basic {base64.b64encode(b'user:' + WORD.encode()).decode()}",
    "argument": f"--api-key {BASE64[:30]}",
    "Docker's configuration": json.dumps({"auths": {"r.example": {"auth": BASE64[:20]}}}),
    "service account": json.dumps({"private_key": PEM.format("", "")}),
    "assignment": f"DB_PASS={WORD}",
    "assignment after export": f"export OPENAI_KEY={WORD}",
    "Hugging Face, OAuth": f"hf_oauth_{BASE64[:40]}",
    "Azure application": f"{BASE64[:3]}8Q~{BASE64[:34]}",
    "Azure OpenAI": f"{BASE64[:52]}JQQJ99{BASE64[:26]}",
    "Azure storage, bare": f"{(BASE64 * 2)[:86]}==",
    "Azure function": f"https://f.example/api/x?code={BASE64[:54]}==",
    "AWS session": f"IQoJb3JpZ2lu{BASE64}",
    "AWS Bedrock": f"ABSK{BASE64}",
    "AWS secret in a file": f"aws_secret_access_key = {BASE64[:40]}",
    "Notion": f"ntn_{BASE64[:46]}",
    "Airtable": f"pat{BASE64[:14]}.{HEX}",
    "Artifactory": f"AKCp{BASE64[:60]}",
    "SonarQube": f"squ_{HEX[:40]}",
    "Alibaba": f"LTAI{BASE64[:20]}",
    "OpenShift": f"sha256~{BASE64[:43]}",
    "Twilio": f"SK{HEX[:32]}",
    "Mailchimp": f"{HEX[:32]}-us12",
    "Octopus": "API-" + "A1B2" * 6 + "C3",
    "1Password": f"ops_eyJ{BASE64}",
    "Yandex": f"t1.{BASE64[:40]}.{(BASE64 * 2)[:86]}",
    "k3s": f"K10{HEX}::server:{BASE64[:32]}",
    "Teams, webhook": f"https://x.webhook.office.com/webhookb2/{HEX[:36]}@{HEX[:36]}",
    "hash of a password": f"$6${BASE64[:16]}${BASE64}",
    "hash of a password, Apache": f"admin:$2y$05${BASE64[:53]}",
    "hash of a password, Argon": f"$argon2id$v=19$m=65536,t=3,p=4${BASE64[:22]}${BASE64[:43]}",
    "PKCS #8 without its first line": f"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC{BASE64}",
    "OpenSSH without its first line": f"b3BlbnNzaC1rZXktdjEAAAAA{BASE64}",
    "PKCS #12": f"MIIKEgIBAzCCCdgG{BASE64}",
    "line of YAML": f"client_secret: {BASE64[:24]}",
    "line of a kubeconfig": f"client-key-data: {BASE64}",
    "JSON in JSON": json.dumps(json.dumps({"password": BASE64[:20]})),
    "token header": f"Authorization: Token {BASE64[:40]}",
    "header of Vault": f"X-Vault-Token: {BASE64[:26]}",
    "cookie": f"Cookie: session={BASE64[:40]}",
    "netrc": f"machine git.example login bob password {WORD}",
    "E2B": f"e2b_{HEX[:40]}",
    "PostHog": f"phx_{BASE64[:43]}",
    "Tavily": f"tvly-dev-{BASE64[:32]}",
    "Weights & Biases": f"wandb_v1_{BASE64[:27]}_{BASE64[:40]}",
    "AWS Bedrock with a slash": f"ABSK{BASE64[:9]}/{BASE64}",
    "curl": f"curl -u bob:{WORD} https://x.example",
    "docker login": f"docker login -u bob -p {WORD} registry.example",
    "mysql": f"mysql -u bob -p{WORD} db",
    "NGC's user": f"$oauthtoken:{BASE64[:40]}",
    "registry of packages": f"//registry.example/:_authToken={HEX[:8]}-4e5f-6789",
    "JSON of Python": repr({"db_password": WORD}),
    "quoted assignment": f'export HF_TOKEN="{WORD}"',
    "spaced line of YAML": "db_password : 'Aa1!word'",
    "Docker's file in base64": base64.b64encode(b'{"auths":{"r.example":{}}}' * 2).decode(),
    "full-width letters": "".join(chr(ord(one) + 0xFEE0) for one in "password") + f"={WORD}",
    "parameter of a URL": f"https://x.example/?token={BASE64[:24]}",
    "argument of a registry": f"--registry-password {WORD}",
    "argument of a proxy": f"wget --http-password={WORD} https://x.example",
    "PEM in base64 behind a line": base64.b64encode(b"\n" + PEM.format("", "").encode()).decode(),
    "element of XML": f"<adminPassword>{WORD}</adminPassword>",
    "Ruby and Puppet": 'password => "Aa1!word"',
    "Go": f'apiKey := "{BASE64[:24]}"',
    "pass phrase": "passphrase: Aa1!word",
    "secret of a client that is a name": "client_secret: blue-monkey-river-42",
    "token that is a name": "access_token=blue-monkey-river-42",
    "redis": f"redis-cli -h cache.example -a {WORD} ping",
    "mongo": f"mongosh -u app -p {WORD} db.example",
    "LDAP": f"ldapsearch -x -D cn=admin -w {WORD}",
    "Azure login": f"az login --service-principal -u x -p {WORD}",
    "Apache's passwords": f"htpasswd -b users bob {WORD}",
    "Weights & Biases, login": f"wandb login {HEX[:40]}",
    "literal of kubectl": f"kubectl create secret generic s --from-literal=db={WORD}",
    "OpenSSL": f"openssl rsa -passin pass:{WORD}",
    "Oracle": f"jdbc:oracle:thin:scott/{WORD}@//db.example:1521/x",
    "Honeycomb, header of OTLP": f"x-honeycomb-team={BASE64[:22]}",
    "Apify": f"apify_api_{BASE64[:36]}",
    "Supabase": f"sb_secret_{BASE64[:22]}_{BASE64[:8]}",
    "Docker Swarm": f"SWMTKN-1-{HEX[:50]}-{HEX[:25]}",
    "Sentry, user": f"sntryu_{HEX}",
    "Firecrawl": f"fc-{HEX[:32]}",
    "Cursor": f"key_{HEX}",
    "Jina": f"jina_{HEX[:32]}{BASE64[:30]}",
    "Vercel, AI gateway": f"vck_{BASE64[:56]}",
    "Slack, session": f"xoxc-{BASE64[:40]}",
    "GitLab, session": f"_gitlab_session={HEX[:32]}",
    "Facebook": f"123456789012345|{BASE64[:27]}",
    "base64 of a line that holds one": base64.b64encode(f"password: {BASE64}".encode()).decode(),
}
NAMES = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN NGC_API_KEY NVIDIA_API_KEY OPENAI_KEY OPENAI_API_KEY
ANTHROPIC_API_KEY WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN
AZURE_CLIENT_SECRET AZURE_STORAGE_KEY AZURE_STORAGE_CONNECTION_STRING DB_PASS DB_PASSWORD
db_password dbPassword MYSQL_PWD PGPASSWORD POSTGRES_PASSWORD REDIS_AUTH REDISCLI_AUTH RABBIT_PASS
DOCKER_AUTH_CONFIG GITHUB_PAT GH_PAT CI_JOB_TOKEN GITLAB_TOKEN NPM_TOKEN SLACK_WEBHOOK
SLACK_WEBHOOK_URL SENTRY_DSN JWT API_JWT BEARER BEARER_TOKEN SESSION_COOKIE SSH_PRIVATE_KEY
SIGNING_KEY ENCRYPTION_KEY MASTER_KEY TLS_KEY KMS_KEY AWS_KMS_KEY SECRET MY_SECRET CLIENT_SECRETS
SECRET_KEY_BASE APP_SECRET_2 TOKEN TOKEN_V2 KEY_PASSPHRASE VAULT_TOKEN SAS_TOKEN X_APIKEY APIKEY
SERVICE_CREDENTIALS GIT_CREDENTIAL AUTHORIZATION PROXY_AUTH STRIPE_KEY MONGO_PASSWD ADMIN_PASSCODE
SSHPASS DBPASS ROOTPW DB_PW PRIVATEKEY SSHKEY API_KEYS DB_PASSWORDS ACCESS_TOKENS PASSWORD_DB
PASSWORD_PLAIN TOKEN_BACKUP API_TOKEN_READ PSK TOKEN_GITHUB KEY_OPENAI AWS_BEARER_TOKEN_BEDROCK
MOT_DE_PASSE APITOKEN TAILSCALE_AUTHKEY KEYTAB_B64 CLIENT_PFX NGC_SAK DB_CONN_STR
WALLET_SEED_PHRASE TF_TOKEN_app_example_io
"""
HARMLESS = """
TLLM_LOG_LEVEL MAX_TOKENS HF_TOKEN_PATH HF_TOKEN_FILE DETOKEN TOKENIZER TOKENIZERS_PARALLELISM
TOKEN_BUDGET EOS_TOKEN PAD_TOKEN_ID MAX_TOKEN MONKEY COMPASS BYPASS PASSTHROUGH SINGLE_PASS
PUBLIC_KEY SORT_KEY KEY_CACHE_SIZE SECRETARY AUTHOR PATCH_LEVEL DSN_TIMEOUT_S COOKIES_DISABLED
KEYBOARD PWDX STOP_TOKENS NUM_TOKENS SORT_KEYS PASSWORD_FILE PASSWORD_POLICY TURKEY OPWD
RATE_LIMIT_USER_TOKENS STOP_KEY_LIST DB_PASSWORD_HOST SSH_PASSWORD_AUTHENTICATION PASSWORD_HASH
PASSWORD_HASH_ROUNDS TOPOLOGY_KEY KV_KEY EOT_TOKEN TIME_PER_OUTPUT_TOKEN AFFINITY_KEY
WATERMARK_KEY AWS_KMS_KEY_ID KMS_KEY_ARN NCCL_DEBUG OMP_NUM_THREADS UCX_TLS CUDA_VISIBLE_DEVICES
HOME_REGION PATTERN
"""
PLAIN_TEXTS = (
    *(
        "nvidia/DeepSeek-V3.2-NVFP4",
        "/models/task-force-1234567890-abcdefghijklmn",
        "sha256:" + HEX,
    ),
    *("registry.example:5000/team/image:1.2@sha256:" + HEX, "https://example.org/x?page=2", HEX),
    *(
        "max_tokens=2048;eos_token=128001",
        "the password is in the vault",
        "ask for a token: see docs",
    ),
    *("-----BEGIN CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----", "user@example.org", "a:b@c"),
    base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----\n").decode(),
    "NCCL_IB_HCA=mlx5_0:1,mlx5_1:1",
    *("--max-num-batched-tokens=32768`", "api_key: 5 is out of range", "token: must be given"),
    *("docker run -u 1000:1000 x", "sha512-" + (BASE64 * 2)[:86] + "==", "$6.50 and $1200"),
    *("token=$HF_TOKEN_READ_2_X", "secret=/run/secrets/db_v2", "--token $HF_TOKEN_V2"),
    *("existingSecret: hf-token-secret-v1", "imagePullSecret: ngc-registry-v2-secret"),
    *("token: <|reserved_special_token_250|>", "curl -u elastic:$ELASTIC_PW https://x.example"),
    *("auth: /etc/auth/htpasswd_v2", "password: $(cat /run/secrets/db_1)"),
    *("hf_token_secret: hf-token-secret-v1", "https://x.example/?token=wikitext-103-raw-v1"),
    *("auth: oauth2-proxy-keycloak-1", "pull_secret=ngc-registry-2025-prod", "api-key=$key"),
    *(
        "Authorization: Bearer ${API_TOKEN}",
        "api-key: YOUR_API_KEY_HERE",
        "cookie: recipes_2024_v1",
    ),
    *("token=tokenizer_v3_tekken.json", "Basic Training2026Dataset", 'client(api_key="none")'),
    *("--api-key ${VLLM_API_KEY}", "sshpass -p $PASSWORD_2 ssh node"),
    *("docker run --name mysql-exporter -p 9104:9104 x", "mysqld --port 3306 -p 33060x"),
    *("docker run --name mysql -p3306:3306 x", "docker run mysql -p127.0.0.1:3306:3306/tcp"),
    # Where it is: a file, a store, a variable; and what stands for none.
    *("api_key: file:/run/secrets/k1", "token: file:///var/run/secrets/t1", "pwd=/workspace"),
    *("secret: vault:secret/data/llm#key1", "password: op://vault/item/field1"),
    "secret: arn:aws:secretsmanager:us-east-1:123456789012:secret:llm-AbCdEf",
    *('client(api_key="EMPTY")', "OPENAI_API_KEY=EMPTY", "--api-key dummy", "api_key: not-needed"),
    *("redis-cli -a $REDIS_PW ping", "mongosh -p --quiet", "--eos-token <|im_end|>"),
    "kubectl create secret generic s --from-literal=db=$DB_PASSWORD_1",
    *("--max-draft-token 1024000", "--pull-secret ngc-registry-2025", "--token-file /run/x/t1"),
    base64.b64encode(b"\n-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----").decode(),
)
# What a machine drew or that looks so, and is no secret: public keys, digests, pages, kernels, ids.
PUBLIC = (
    f"-----BEGIN CERTIFICATE-----\n{DRAWN * 3}\n-----END CERTIFICATE-----\n",
    "caBundle: "
    + base64.b64encode(f"-----BEGIN CERTIFICATE-----\n{DRAWN * 3}\n-----END".encode()).decode(),
    *(f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{(DRAWN * 3)[:43]} a@b", f"SHA256:{(DRAWN * 3)[:43]}"),
    *(f"https://docs.example/document/d/1{(DRAWN * 3)[:43]}/edit", f"sha384-{(DRAWN * 3)[:64]}"),
    base64.b64encode(b"scheduler: {policy: max_utilization, chunk: 8192}").decode(),
    "fmhaSm100fKernel_QkvBfloat16OBfloat16H128SeparateQkvCausalVarSeqQ128Kv128StaticContext",
    *("Wav2Vec2ConformerForAudioFrameClassification", "PBESv2SHA256AndAES256CBC"),
    *("GB200NVL72Dep32Ctx4Gen2Mtp1Bs256", "Isl8kOsl1kTp8Ep8Bs512Fp4Kvfp8"),
    *(
        "_ZN12tensorrt_llm7kernels21fusedQKNormRopeKernelILi128ELb1EEEvP13__nv_bfloat16",
        "key=value",
    ),
    *("service.name=llm,key=region", "0x946DAE0300123456946dae0300123456"),
    # What servers draw for each request, and stores for each object.
    *(f"chatcmpl-{DRAWN}", f"chatcmpl-tool-{DRAWN}", f"call_{DRAWN}", f"cmpl-{DRAWN}"),
    *(f'{{"id": "{DRAWN}"}}', f'etag: "{DRAWN}"', f"x-request-id: {DRAWN}", f"h1:{DRAWN * 2}="),
    *(
        f"Content-MD5: {DRAWN}",
        f"digest: {DRAWN}=",
        f"H4sIAAAAAAAA/{DRAWN}==",
        f"RWQf6L{DRAWN * 2}9a",
    ),
    *("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKFW2q", f"docs.example/d/1{DRAWN}/edit"),
    f"data:image/jpeg;base64,{DRAWN}",
    # Names of runs: what was measured, with its numbers.
    *("1k1kB200x8Tp4Ep4Conc64Mtp3Fp4", "H200x8Tp8Ep8Bs256Mtp2Isl8kOsl1k"),
    *(
        "GptOss120bH100x2Tp2Bs64Isl1k",
        "Kimik2p5Fp4B200x8Tp8Ep8Isl1k",
        "f16f8f4E4m3E5m2E2m1Ue8m0Ue4m3",
    ),
    *("DeepSeekV3p2Exp685BA37BNvFp4W4A16", "K8sH100x8Tp2Pp4V1Rc3Nv5Q7b"),
)
# Keys of SSH that anybody may know, by their kinds.
PUBLIC_KEYS = {
    "ssh-rsa": "AAAAB3NzaC1yc2EAAAADAQAB",
    "ssh-dss": "AAAAB3NzaC1kc3MAAACB",
    "ssh-ed25519": "AAAAC3NzaC1lZDI1NTE5AAAAI",
    "ecdsa-sha2-nistp256": "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAI",
    "ecdsa-sha2-nistp521": "AAAAE2VjZHNhLXNoYTItbmlzdHA1MjEAAAAI",
    "sk-ssh-ed25519@openssh.com": "AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t",
    "sk-ecdsa-sha2-nistp256@openssh.com": "AAAAInNrLWVjZHNhLXNoYTItbmlzdHAyNTZAb3BlbnNzaC5jb20",
    "ssh-ed25519-cert-v01@openssh.com": "AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29t",
}
# Paths, names of models, hosts and images that begin as some credentials do.
PLAIN_NAMES = """
/mnt/phx_lustre_01/models/gpt-oss /models/gemma-4-e2b_fp8_checkpoint_v1 sk-learn-1.5.2-cp312-linux
gemma-4-e2b_nvfp4_agg_h100_tp1 hf_hub_download_cache_v0_25 hf_quant_config_fp8_2025
/data/gpt_neox_20b_checkpoint_step_143000 zai-org/GLM-4.6-FP8 /mnt/glm-5-fp8/checkpoint_0001
rk_embedding_table_v2_2025_12 pk_table_benchmark_h100_0001 pk-fsx-lustre-us-east-1-0001
s3://bucket/models/llama-3.3-70b-instruct-fp8/v1/ gs://bucket/sqa_v2/2025/validation.jsonl
r.example:5000/llm/fw-trtllm-serve-image-build-0042:latest fw_28_43_1014_connectx7_mt4129_signed
gsk_dataset_2025_molecule_benchmark_v2 xai-grok-2-checkpoint-fp8-tp8 pplx-embed-context-v1-0.6b
r8_gemm_kernels_fp8_h100_sm90_v2 r8-node-0001-rack-12-us-east-1 dgx-h100-node-0042.internal
sk-hynix-cxl-memory-node-0001 sqa_benchmark_dataset_2024_v1 squ_eval_harness_v2_2025
cflt-kafka-broker-0001.internal /cflt01/models/checkpoints/llama sbp_h100/models/qwen3/2025
csk-cluster-h100-node-0001 figd_dataset_2025_charts_v2 ntn_backbone_switch_2025_0001
fo1_stage_checkpoint_000123 tfp_layers_00012_checkpoint rpa_workflow_model_2025_v2
NRII-cluster-2025-node-0001 LTAI-models-2025-checkpoint-0001 vcp_bench_2025_run_00001_h100
pnu_nlp_llama3_8b_instruct_ko kpat_dataset_2025_korean_patents wandb_v1_offline_run_20251130_093012
/ckpt/dp.st.0001.model.shard.0002 glsa_attention_kernel_sm100_v2 xapp-onboarder-0001-us-east
re_compile_cache_sm100_v2 rnd_seed_1234567890123456 jina_embeddings_v3_fp8_sm90_2025
tss_pipeline_parallel_rank_0001 cog_model_predictor_v0_9_9_cuda12 sgp_rack12_node0042_h100
tgp_v1_benchmark_run_2025_11_30 pypi-mirror-01-of-the-team-in-us-east-1 lsv2_pt_benchmark_h100_2025
"""


def deployment(**given: Any) -> dict[str, Any]:
    base = yaml.safe_load((ROOT / "builder/data/presets/llama-tiny.yaml").read_text())
    return {**base, **given}


def kubernetes(attributes: dict[str, Any]) -> dict[str, Any]:
    volume = {"csi": {"driver": "csi.example", "attributes": attributes}}
    return {"trtllm_serve": {}, "kubernetes": {"server": "trtllm_serve", "model": volume}}


def refused(document: dict[str, Any], folder: Path) -> str:
    """What is said of a deployment, which nothing is rendered of."""
    (folder / "d.json").write_text(json.dumps(document))
    done = survive("render", "d.json", "-o", "bundle", cwd=folder)
    assert "credential" in done.stderr and not (folder / "bundle").exists()
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES.split())
def test_a_variable_of_such_a_name_is_refused_unsaid(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [f"environment.{name}={WORD}"])
    assert f"environment.{name}" in str(caught.value) and WORD not in str(caught.value)


@pytest.mark.parametrize("name", HARMLESS.split())
def test_other_variables_pass(name: str) -> None:
    assert not list(credentials.found({"environment": {name: WORD}}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TLS_KEY", "/run/tls/tls.key"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/gcp/key.json"),
        ("UCX_AUTH", "off"),
        ("HF_TOKEN", ""),
        ("REQUIRE_API_KEY", "false"),
        ("REASONING_TOKEN", "<think>"),
        ("OPENAI_API_KEY", "EMPTY"),
        ("KRB5_KEYTAB", "/etc/krb/host.keytab"),
    ],
)
def test_where_a_credential_is_may_be_said(name: str, value: str) -> None:
    assert not list(credentials.found({"environment": {name: value}}))


def test_only_variables_of_engines_that_hold_one_are_taken_for_one() -> None:
    known = {name for row in release.of_all_engines() for name in row.environment}
    # Those of vLLM hold credentials indeed.
    held = {"S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY", "VLLM_API_KEY"}
    assert known and {name for name in known if is_name(name)} == held


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_of_such_a_shape_is_found_and_masked(kind: str) -> None:
    text = TEXTS[kind]
    for around in ("{}", "see {} for it", '"{}"'):
        given = around.format(text)
        assert list(credentials.found({"notes": [given]})) != []
        said = str(Diagnostic(given, f"is {given}", f"write {given}"))
        for part in (BASE64[:16], HEX[:16], DRAWN[:16], WORD, "MIIEvQ", "A1B2" * 2):
            assert part not in said


def test_what_a_machine_drew_is_masked_alone_and_never_refused() -> None:
    for text in ("{}", "see {} for it", '"{}"', "runs/{}/log", "a/{}"):
        assert credentials.mask(text.format(DRAWN)) == text.format(credentials.MASK)
        assert list(credentials.found({"environment": {"MODEL_TAG": text.format(DRAWN)}})) == []


@pytest.mark.parametrize("kind", PUBLIC_KEYS)
def test_public_keys_of_ssh_pass(kind: str) -> None:
    text = f"{kind} {PUBLIC_KEYS[kind]}{DRAWN * 3} a@b"
    assert credentials.mask(text) == text


@pytest.mark.parametrize(
    "text", ["https://x.example/?key=opensesame", "a?b=1&key=opensesame", "auth=swordfish"]
)
def test_a_word_in_a_url_or_to_log_in_with_is_masked(text: str) -> None:
    assert credentials.mask(text) == text.partition("=op")[0].partition("=sw")[0] + "=[credential]"


@pytest.mark.parametrize(
    "value",
    [
        *("your-Xk29dk2Pz8s1q", "your-XkQzTbLmWw", "none-Xk29dk2Pz8s1q", "changeme8sdf7GhQ"),
        *("[Xk29dk2Pz8s1q", "<Xk29dk2Pz8s1q", "{{Xk29dk2Pz8s1q", "${Xk29dk2Pz8s1q", "<x>8sdf7GhQ"),
        *("*Xk29dk2Pz8s1q", "***8sdf7GhQ", "/abc/def123456", "${DB_PW:-Xk29dk2Pz8}"),
    ],
)
def test_a_value_that_only_begins_as_a_place_holder_is_masked(value: str) -> None:
    for text in (f"password={value}", f"--password={value}", f"DB_PASS={value}"):
        assert value not in credentials.mask(text)
        assert value not in credentials.mask(f'{{"password": "{value}"}}')


PLACE_HOLDERS = (
    *("your-api-key", "YOUR_TOKEN_HERE", "changeme", "replace-with-your-secret", "none", "******"),
    *("<from-vault-2>", "[REDACTED]", "{{.Values.token2}}", "${DB_PASSWORD_2:?}", "$PASS_2"),
    *("/run/secrets/key_2", "/opt/team/keys/db.txt", "/home/ci/.cache/token2", "$(cat"),
)


@pytest.mark.parametrize("value", PLACE_HOLDERS)
def test_place_holders_and_paths_pass(value: str) -> None:
    quoted = (f'{{"password":"{value}","x":1}}', f'client(api_key="{value}").run()')
    for text in (f"password={value}", f"--password={value};x", f"DB_PASS={value}", *quoted):
        assert credentials.mask(text) == text


KEYS_IN_GROUPS = """
abcd-1234-efgh-5678 Correct-Horse-Battery-9 ABCDEF-123456-ABCDEF Sun.Moon.Stars.88
abc123-def456-ghi789 qwer-7741-tyui-0093 ABCDE-FGHIJ-12345-KLMNO abc-123-def-456-ghi
KLMN8821-QRST4410 qazwsx-112233-edcrfv Staple-Horse-2024-Xyz abcdef123456-ghijkl
Abcdefghijklmnop1234 Maple-Syrup-Fort-19 550e8400-e29b-41d4-a716-446655440000 tgbn-yhnm-8812-ujmk
PQRS/8841/TUVW/1123
"""
NAMES_OF_OBJECTS = """
hf-token-secret-v1 wikitext-103-raw-v1 ngc-registry-secret-2 tensorrt-llm-1.3.0rc23
llama-3.3-70b-instruct mixtral-8x7b-instruct-v0.1 qwen3-235b-a22b-instruct oauth2-proxy-keycloak-1
ngc-registry-2025-prod step-1-of-2-in-runbook secret/data/llm/prod-2 vault-approle-1
phi-4-mini-128k llm-gateway-jwt-signing-2 gateway-tls-2025 deepseek-v3.2-nvfp4
ceval-2024-validation
"""
OF_KEYS = ("token: {}", "secret: {}", "https://x.example/?key={}", "/x?secret={}", "Bearer {}")


@pytest.mark.parametrize("value", KEYS_IN_GROUPS.split())
def test_a_key_in_groups_is_no_name_of_an_object(value: str) -> None:
    assert [form for form in OF_KEYS if value in credentials.mask(form.format(value))] == []


@pytest.mark.parametrize("name", NAMES_OF_OBJECTS.split())
def test_names_of_objects_pass(name: str) -> None:
    assert [form for form in OF_KEYS if name not in credentials.mask(form.format(name))] == []


@pytest.mark.parametrize("text", [*PLAIN_TEXTS, *PUBLIC, PLAIN_NAMES])
def test_other_texts_pass(text: str) -> None:
    assert credentials.mask(text) == text
    assert not list(credentials.found({"notes": [text]}))


def test_what_ships_holds_nothing_that_looks_like_one() -> None:
    for folder in ("presets", "models", "hardware", "heuristics"):
        for path in (ROOT / "builder/data" / folder).glob("*.yaml"):
            assert not list(credentials.found(yaml.safe_load(path.read_text()))), path


# Everywhere that a deployment has a place for text, and wrong places too: the error says the place.
SECRET = TEXTS["Hugging Face"]
PLACES: dict[str, dict[str, Any]] = {
    "a value": deployment(environment={"PLAIN": SECRET}),
    "a name": deployment(environment={SECRET: "x"}),
    "a list in its place": deployment(environment=[f"HF_TOKEN={SECRET}"]),
    "a list of names and values": deployment(environment=[{"name": "DB_PASS", "value": WORD}]),
    "a text in its place": deployment(environment=f"HF_TOKEN={SECRET}"),
    "a list as value": deployment(environment={"DB_PASS": [WORD]}),
    "a mapping as value": deployment(environment={"DB_PASS": {"value": WORD}}),
    "a number as value": deployment(environment={"DB_PASS": 18_446_744_073_709}),
    "a note": deployment(notes=[f"use {SECRET}"]),
    "a note that is a mapping": deployment(notes=[{"token": SECRET}]),
    "the checkpoint": deployment(checkpoint=SECRET),
    "a URL as checkpoint": deployment(checkpoint=f"https://user:{WORD}@hub.example/x"),
    "the name": deployment(name=SECRET),
    "the GPU": deployment(hardware={"gpu": SECRET, "num_gpus": 1}),
    "the number of GPUs": deployment(hardware={"gpu": "h100", "num_gpus": SECRET}),
    "the release": deployment(engine={"release": SECRET}),
    "the engine": deployment(engine={"release": "1.2.1", "name": SECRET}),
    "an unknown key": deployment(**{SECRET: 1}),
    "an unknown key's value": deployment(token=SECRET),
    "a target": deployment(targets=["triton", SECRET]),
    "an image": deployment(images={"triton": f"https://user:{WORD}@registry.example/x"}),
    "an image's name and password": deployment(images={"triton": f"user:{WORD}@r.example/x:1"}),
    "an option": deployment(engine_config={"kv_cache_config": {"dtype": SECRET}}),
    "an option's type": deployment(engine_config={"max_batch_size": SECRET}),
    "an unknown option": deployment(engine_config={SECRET: 1}),
    "a reason": deployment(
        accepted_advisories=[{"product": "triton", "version": "1", "reason": f"because {SECRET}"}]
    ),
    "an attribute of a volume": deployment(targets=kubernetes({"share": SECRET})),
    "an attribute by its name": deployment(targets=kubernetes({"dbPassword": WORD})),
    "an attribute after a slash": deployment(targets=kubernetes({"csi.example/password": WORD})),
    "an attribute of a list": deployment(targets=kubernetes({"secret": [WORD]})),
    "a draft": deployment(draft={"checkpoint": SECRET, "tokens": 2}),
    "a draft's number": deployment(draft={"checkpoint": "x", "tokens": SECRET}),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_deployment_with_one_is_refused_unsaid(name: str, tmp_path: Path) -> None:
    said = refused(PLACES[name], tmp_path)
    assert SECRET not in said and WORD not in said and "18446744073709" not in said
    assert SECRET[:12] not in said


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_KEY", "DB_PASS"])
def test_a_site_profile_with_one_is_refused_unsaid(name: str, tmp_path: Path) -> None:
    site = yaml.safe_load((ROOT / "tests/golden/site.yaml").read_text())
    site["environment"][name] = f"{WORD}\u00e9"  # also of letters that no profile may have
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    setting = f"targets.slurm.site={tmp_path / 'site.yaml'}"
    done = survive("plan", "llama-tiny", "--set", setting, cwd=tmp_path)
    assert WORD not in done.stderr and name in done.stderr


@pytest.mark.parametrize(
    "setting",
    [
        f"environment.DB_PASS={WORD}",
        f"environment.DB_PASS=[{WORD}",
        f"environment.DB_PASS.x.y={WORD}",
        f"name.DB_PASS={WORD}",
        f"DB_PASS {WORD}",
        f"environment.X={SECRET}",
        f"{SECRET}",
        f"=DB_PASS={WORD}",
        f"environment.DB_PASS: {WORD}",
    ],
)
def test_a_setting_with_one_is_refused_unsaid(setting: str, tmp_path: Path) -> None:
    done = survive("plan", "llama-tiny", "--set", setting, cwd=tmp_path)
    assert WORD not in done.stderr and SECRET not in done.stderr


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.yaml", f"backend: {SECRET}\nmax_batch_size: {SECRET}\n{SECRET}: 1\n"),
        ("config.yaml", f"kv_cache_config: {{dtype: {SECRET}}}\nmoe_config: {SECRET}\n"),
        ("broken.yaml", f"backend: [{SECRET}\n"),
        ("serve.sh", f"#!/bin/bash\ntrtllm-serve /m --backend {SECRET} --unknown {SECRET}\n"),
        ("job.sbatch", f"#!/bin/bash\n#SBATCH --time={SECRET}\n#SBATCH --{SECRET}\nsrun x\n"),
        ("d.yaml", yaml.safe_dump(deployment(environment={"HF_TOKEN": SECRET}))),
    ],
)
def test_findings_repeat_none(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    for form in ((), ("--json",), ("--sarif", "out.json")):
        done = survive("check", file, *form, cwd=tmp_path, codes=(0, 2), lines=False)
        written = [path.read_text() for path in tmp_path.glob("out.json")]
        assert SECRET not in "".join([done.stdout, done.stderr, *written])


@pytest.mark.parametrize(
    "words",
    [[SECRET], ["plan", f"--{SECRET}"], ["estimate", "llama-tiny", "--price", SECRET]],
)
def test_a_wrong_command_line_is_refused_unsaid(words: list[str], tmp_path: Path) -> None:
    done = survive(*words, cwd=tmp_path, lines=False)
    assert "[credential]" in done.stderr and SECRET not in done.stderr


@pytest.mark.parametrize("old", ["name: ", "  reason: ", "  cwe: "])
def test_advisories_with_one_are_refused_unsaid(old: str, tmp_path: Path) -> None:
    for path in (ROOT / "builder/data/advisories").glob("*.yaml"):
        text = re.sub(
            rf"(?m)^([ -]*){old.strip()} .*", rf"\1{old.strip()} {SECRET}", path.read_text()
        )
        (tmp_path / path.name).write_text(text)
    done = survive("advisories", "--advisories", ".", cwd=tmp_path)
    assert "holds a credential" in done.stderr and SECRET not in done.stdout + done.stderr
