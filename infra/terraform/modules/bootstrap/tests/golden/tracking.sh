#!/bin/bash
# Writes what this machine is told and its units, then starts them. Rendered by the Terraform
# module bootstrap; cloud-init runs it at the first boot, and running it again changes nothing.
# It holds no secret: machines fetch those with the rights of their own role.
set -euo pipefail

write() { # MODE PATH, the content on standard input
  install -D --mode="$1" /dev/stdin "$2"
}

id rungwise &>/dev/null ||
  useradd --system --home-dir /var/lib/rungwise --shell /usr/sbin/nologin rungwise

write 0644 /etc/rungwise/machine.json <<'RUNGWISE'
{"allowed_hosts":["tracking.demo.internal","tracking.demo.internal:*","localhost:*","127.0.0.1:*"],"artifact_uri":"s3://demo-bucket/rungwise","cluster":"demo","database":{"host":"demo.abcdefghijkl.eu-central-1.rds.amazonaws.com","name":"mlflow","port":5432,"secret":"arn:aws:secretsmanager:eu-central-1:111122223333:secret:rds!db-0f1e2d3c-AbCdEf"},"region":"eu-central-1","role":"tracking"}
RUNGWISE

write 0755 /usr/local/sbin/rungwise-install <<'RUNGWISE'
#!/bin/bash
# Installs the package of this cluster into /opt/rungwise, unless it is there. The package holds
# every wheel, so no index is asked. Credentials go through standard input, because anyone on the
# machine may read arguments.
set -euo pipefail
umask 022

sha256=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
place=demo-bucket/packages/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.tar.gz
region=eu-central-1
python=python3
target=/opt/rungwise
metadata=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
metadata=${metadata%/}
case $region in # the partition's own domain
  cn-*) domain=amazonaws.com.cn ;;
  eusc-*) domain=amazonaws.eu ;;
  *) domain=amazonaws.com ;;
esac
endpoint=${AWS_ENDPOINT_URL:-https://s3.$region.$domain}
url=${endpoint%/}/$place

fail() {
  echo "rungwise-install: $*" >&2
  exit 1
}

quiet_curl() { # its further options as a config on standard input
  curl --config - --fail --silent --show-error --retry 5 --retry-connrefused "$@"
}

instance() { # PATH below /latest/meta-data/
  printf 'header = "X-aws-ec2-metadata-token: %s"\n' "$session" |
    quiet_curl --noproxy '*' --max-time 10 "$metadata/latest/meta-data/$1"
}

download() {
  local session role credentials
  session=$(quiet_curl --noproxy '*' --max-time 10 --request PUT \
    --header 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/latest/api/token" </dev/null) &&
    role=$(instance iam/security-credentials/) &&
    credentials=$(instance "iam/security-credentials/$role" | "$python" -c '
import json, sys
found = json.load(sys.stdin)
print("user = \"%s:%s\"" % (found["AccessKeyId"], found["SecretAccessKey"]))
print("header = \"x-amz-security-token: %s\"" % found["Token"])
') &&
    printf '%s' "$credentials" | quiet_curl --aws-sigv4 "aws:amz:$region:s3" \
      --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' --output "$work/package.tar.gz" "$url"
}

if [[ -f $target/package.sha256 && $(<"$target/package.sha256") == "$sha256" ]]; then
  echo "rungwise-install: package $sha256 is installed"
  exit 0
fi

work=$(mktemp --directory /var/tmp/rungwise-install.XXXXXX)
trap 'rm -rf "$work"' EXIT

# The role of a new machine is not known everywhere at once.
attempt=1
until download; do
  ((attempt++ < 20)) || fail "s3://$place could not be read; has the role of this machine the right to?"
  echo "rungwise-install: s3://$place could not be read yet; trying again in 15 s" >&2
  sleep 15
done

found=$(sha256sum "$work/package.tar.gz" | cut --delimiter=' ' --fields=1)
[[ $found == "$sha256" ]] ||
  fail "s3://$place has the SHA-256 $found, expected $sha256; nothing was installed." \
    "Upload what infra/package.sh made, or apply with the sum it printed."

tar --extract --gzip --no-same-owner --directory "$work" --file "$work/package.tar.gz"
made_for=$(<"$work/python")
this=$("$python" -c 'import sys, sysconfig; print("cp%d%d-%s" % (*sys.version_info[:2], sysconfig.get_platform()))')
[[ $made_for == "$this" ]] ||
  fail "the package was made for $made_for, and $python of this machine is $this." \
    "Run infra/package.sh with the Python of the AMI, or choose another AMI."

rm -rf "$target"
"$python" -m venv --without-pip "$target"
pip=("$work"/wheels/pip-*.whl)
"$target/bin/python" "${pip[0]}/pip" install --quiet --no-index --no-deps --no-cache-dir \
  --disable-pip-version-check --root-user-action ignore "$work"/wheels/*.whl
install --mode=644 "$work/rds-ca.pem" "$target/rds-ca.pem"
"$target/bin/python" -c 'import rungwise'
echo "$sha256" >"$target/package.sha256"
echo "rungwise-install: package $sha256 was installed into $target"
RUNGWISE

write 0644 /etc/systemd/system/rungwise-install.service <<'RUNGWISE'
[Unit]
Description=Install the package of rungwise
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/rungwise-install
TimeoutStartSec=45min
# The console of the instance can be read when the machine cannot be reached.
StandardOutput=journal+console
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
LockPersonality=yes
PrivateDevices=yes
ReadWritePaths=/opt

[Install]
WantedBy=multi-user.target
RUNGWISE

write 0644 /etc/systemd/system/rungwise-journal.service <<'RUNGWISE'
[Unit]
Description=Copy the journal of this machine to the bucket
Wants=network-online.target
Requires=rungwise-install.service
After=network-online.target rungwise-install.service
# Stopped after them, so that their last words are copied too.
Before=rungwise-ray.service rungwise-mlflow.service
StartLimitIntervalSec=0

[Service]
User=rungwise
SupplementaryGroups=systemd-journal
StateDirectory=rungwise
Environment=HOME=/var/lib/rungwise
ExecStart=/opt/rungwise/bin/python -m rungwise_aws journal
Restart=on-failure
RestartSec=30
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
LockPersonality=yes
PrivateDevices=yes

[Install]
WantedBy=multi-user.target
RUNGWISE

write 0644 /etc/systemd/system/rungwise-mlflow.service <<'RUNGWISE'
[Unit]
Description=The MLflow server
Wants=network-online.target
Requires=rungwise-install.service
After=network-online.target rungwise-install.service
StartLimitIntervalSec=0

[Service]
User=rungwise
StateDirectory=rungwise
RuntimeDirectory=rungwise-mlflow
RuntimeDirectoryMode=0700
WorkingDirectory=/var/lib/rungwise
Environment=HOME=/var/lib/rungwise
ExecStart=/opt/rungwise/bin/python -m rungwise_aws mlflow
# The database may come up after this machine.
Restart=on-failure
RestartSec=10
LimitNOFILE=65536
LimitCORE=0
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
LockPersonality=yes
PrivateDevices=yes

[Install]
WantedBy=multi-user.target
RUNGWISE

write 0644 /etc/systemd/system/rungwise-password.service <<'RUNGWISE'
[Unit]
Description=Write the database password for MLflow anew, if it was rotated
ConditionPathExists=/run/rungwise-mlflow
After=rungwise-mlflow.service

[Service]
Type=oneshot
User=rungwise
ExecStart=/opt/rungwise/bin/python -m rungwise_aws password
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
LockPersonality=yes
PrivateDevices=yes
ReadWritePaths=-/run/rungwise-mlflow
RUNGWISE

write 0644 /etc/systemd/system/rungwise-password.timer <<'RUNGWISE'
[Unit]
Description=RDS rotates the password of the database by itself

[Timer]
OnActiveSec=2min
OnUnitActiveSec=2min

[Install]
WantedBy=timers.target
RUNGWISE

systemctl daemon-reload
echo "rungwise: starting rungwise-install.service rungwise-journal.service rungwise-mlflow.service rungwise-password.timer; see journalctl -u 'rungwise-*'"
systemctl enable --now rungwise-install.service rungwise-journal.service rungwise-mlflow.service rungwise-password.timer
echo "rungwise: the units of this machine were started"
