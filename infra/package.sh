#!/bin/bash
# Makes the package that machines of a cluster install: every wheel that rungwise needs, with pip,
# in one file. Prints its SHA-256, which `terraform apply -var package_sha256=` wants.
#
#   infra/package.sh package.tar.gz
#
# What follows the file is given to `pip wheel` in place of '.[server]', such as an index that has
# PyTorch without CUDA. Run it with the Python of the AMI and on the same kind of machine
# (PYTHON=python3.12; a container of Ubuntu 24.04 will do): a machine refuses a package made for
# another. The same wheels make the same file.
set -euo pipefail

[[ $# -ge 1 && $1 == *.tar.gz ]] || { echo "usage: $0 PACKAGE.tar.gz [ARGUMENT OF pip wheel]..." >&2; exit 2; }
output=$(realpath "$1")
shift
[[ $# -gt 0 ]] || set -- '.[server]'
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
export SOURCE_DATE_EPOCH=315532800 # 1980, the first year that a zip file knows

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt \
  --wheel-dir "$work/wheels" "$@" >&2
"$python" -m pip download --quiet --disable-pip-version-check --constraint constraints.txt \
  --no-deps --only-binary :all: --dest "$work/wheels" pip >&2
"$python" -c 'import sys, sysconfig; print("cp%d%d-%s" % (*sys.version_info[:2], sysconfig.get_platform()))' \
  >"$work/python"

tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  --mode=u=rwX,go=rX --directory "$work" python wheels | gzip --no-name >"$output"
sha256sum "$output" | cut --delimiter=' ' --fields=1
