#!/usr/bin/env bash
# Makes the Secret by which the pods of one server know each other, from a certificate of its own
# that is valid for ten years: bash secret.sh NAME [KUBECTL_OPTION...]
set -euo pipefail
umask 077
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=$1" \
  -keyout "$folder/tls.key" -out "$folder/tls.crt" 2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
kubectl create secret tls "$1" --cert "$folder/tls.crt" --key "$folder/tls.key" "${@:2}"
