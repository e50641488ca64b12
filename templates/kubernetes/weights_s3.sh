#!/bin/sh
# Fetches a checkpoint from S3 into a folder, and compares it with digests.
#
#     weights_s3.sh S3_URL FOLDER [SUMS]
#
# SUMS is an output of sha256sum; without it, SHA256SUMS next to the files in S3 is. A start after a
# stop goes on where the last one was. A file that differs from its digest is removed, so that the
# next start fetches it again.
set -eu
sums=${3:-$2/SHA256SUMS}
if [ $# -lt 3 ] && ! aws s3 cp --only-show-errors "$1/SHA256SUMS" "$sums"; then
  echo "no digests: run sha256sum on the files, and copy its output to $1/SHA256SUMS"
  exit 1
fi
aws s3 sync --only-show-errors --exclude SHA256SUMS "$1" "$2"
cd "$2"
if report=$(sha256sum --check --quiet "$sums"); then
  echo "all files of $sums have their digests"
  exit
fi
echo "$report" | sed -n 's/: FAILED.*$//p' | while IFS= read -r file; do
  echo "$file: differs from its digest; removed"
  rm -f "$file"
done
exit 1
