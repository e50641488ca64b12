#!/usr/bin/env bash
# Types docs/first-hour.md into a new clone, with an empty environment, and shows each step's time.
#   tests/first_hour.sh [FOLDER]    the clone; by default a new folder, which is removed
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$(mktemp -d)/clone}
[[ ${1:-} ]] || trap 'rm -rf "$(dirname "$folder")"' EXIT

git clone --quiet "$here" "$folder"
cd "$folder"
# What reaches the network is the machine's; all else is new.
kept=()
for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_FILE; do
  [[ -z ${!name:-} ]] || kept+=("$name=${!name}")
done
while read -r name; do kept+=("$name=${!name}"); done < <(compgen -e PIP_ || true)
clean=(env -i HOME="$HOME" PATH="$PATH" LANG=C.UTF-8 "${kept[@]}")
"${clean[@]}" bash launch/demo.sh
echo "== $SECONDS s: bash launch/demo.sh"
"${clean[@]}" .venv/bin/python -m tests.docs.first_hour
echo "== $SECONDS s in all"
