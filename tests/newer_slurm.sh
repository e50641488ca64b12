#!/usr/bin/env bash
# Puts Debian 13's Slurm (24.11, which knows topology/block and --segment) into a folder, without a
# change to this machine: about a minute and 0.4 GB. Takes root, debootstrap and the network. Then:
#   SLURM_ROOT=/opt/slurm-newer .venv/bin/python -m pytest -m slurm
set -euo pipefail
folder=${1:-/opt/slurm-newer}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
# python3 for the libraries that the tests' own Python needs. libpmix-dev is left out: its
# dependencies defeat debootstrap, and all that Slurm's plugin wants of it is an unversioned name.
packages=slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,munge,libpmix2t64,haproxy
packages+=,iproute2,python3,libstdc++6

[[ -x $folder/usr/sbin/slurmctld ]] && exit
command -v debootstrap >/dev/null || {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends debootstrap
} >&2
rm -rf "$folder.new"
debootstrap --variant=minbase --include="$packages" trixie "$folder.new" "$mirror" >&2
for library in "$folder.new"/usr/lib/*/libpmix.so.2; do
  ln -sf libpmix.so.2 "${library%.2}"
done
rm -rf "$folder.new/var/cache/apt/archives" "$folder.new/var/lib/apt/lists"
mv -T "$folder.new" "$folder"
