#!/bin/bash
# Makes the package that machines of a cluster install: every wheel that rungwise needs, with pip,
# and the certificates by which RDS is known, in one file. Prints its SHA-256, which `terraform apply -var package_sha256=` wants.
#
#   infra/package.sh package.tar.gz
#
# What follows the file is given to `pip wheel` in place of '.[server]' ./infra/aws, such as an index that has
# PyTorch without CUDA. Run it with the Python of the AMI and on the same kind of machine
# (PYTHON=python3.12; a container of Ubuntu 24.04 will do): a machine refuses a package made for
# another. The same wheels and certificates make the same file.
#
# RDS_CA is where those certificates are. In other partitions they have other authorities:
# https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.SSL.html
set -euo pipefail

[[ $# -ge 1 && $1 == *.tar.gz ]] || { echo "usage: $0 PACKAGE.tar.gz [ARGUMENT OF pip wheel]..." >&2; exit 2; }
output=$(realpath "$1")
shift
[[ $# -gt 0 ]] || set -- '.[server]' ./infra/aws
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
export SOURCE_DATE_EPOCH=315532800 # 1980, the first year that a zip file knows

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt \
  --wheel-dir "$work/wheels" "$@" >&2
"$python" -m pip download --quiet --disable-pip-version-check --constraint constraints.txt \
  --no-deps --only-binary :all: --dest "$work/wheels" pip >&2
curl --fail --silent --show-error --output "$work/rds-ca.pem" \
  "${RDS_CA:-https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem}"
"$python" -c 'import sys, sysconfig; print("cp%d%d-%s" % (*sys.version_info[:2], sysconfig.get_platform()))' \
  >"$work/python"

tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  --mode=u=rwX,go=rX --directory "$work" python rds-ca.pem wheels | gzip --no-name >"$output"
sha256sum "$output" | cut --delimiter=' ' --fields=1
