#!/bin/bash
# Renders the golden files anew after a wished change of the templates; look at the difference
# before it is committed:   tests/golden/render.sh && git diff tests/golden
set -euo pipefail
golden=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
cat >"$work/main.tf" <<'TF'
variable "machine" { type = any }
module "bootstrap" {
  source  = "./module"
  machine = var.machine
  package = {
    bucket = "demo-bucket"
    key    = "packages/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.tar.gz"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
}
output "user_data" { value = module.bootstrap.user_data }
TF
ln -s "$golden/../.." "$work/module"
terraform -chdir="$work" init -input=false >/dev/null
for role in head worker tracking; do
  terraform -chdir="$work" apply -input=false -auto-approve -state="$work/$role.tfstate" \
    -var "machine=$(<"$golden/$role.json")" >/dev/null
  terraform -chdir="$work" output -state="$work/$role.tfstate" -raw user_data >"$golden/$role.sh"
done
