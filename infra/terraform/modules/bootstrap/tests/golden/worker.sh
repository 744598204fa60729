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
{"artifact_uri":"s3://demo-bucket/rungwise","cluster":"demo","group":"gpu","head_address":"head.demo.internal","headless_minutes":30,"labels":{"disk":"nvme"},"price_per_hour":1.006,"region":"eu-central-1","resources":{"CPU":8,"GPU":1},"role":"worker","spot":true,"token_secret":"arn:aws:secretsmanager:eu-central-1:111122223333:secret:demo-token-AbCdEf","tracking_uri":"http://tracking.demo.internal:5000"}
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

write 0644 /etc/systemd/system/rungwise-leave.service <<'RUNGWISE'
[Unit]
Description=End this worker when the head has been gone for long
Wants=network-online.target
Requires=rungwise-install.service
After=network-online.target rungwise-install.service
StartLimitIntervalSec=0
# An exit without an error says that the machine has no head: it is switched off, and EC2 ends it.
SuccessAction=poweroff

[Service]
User=rungwise
ExecStart=/opt/rungwise/bin/python -m rungwise_aws leave
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

write 0644 /etc/systemd/system/rungwise-notice.service <<'RUNGWISE'
[Unit]
Description=Drain the Ray node when AWS takes the spot instance back
Requires=rungwise-install.service rungwise-token.service
After=rungwise-token.service rungwise-ray.service
StartLimitIntervalSec=0

[Service]
User=rungwise
# Ray reads them when it is imported.
Environment=RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/etc/rungwise/token
ExecStart=/opt/rungwise/bin/python -m rungwise_aws notice
Restart=on-failure
RestartSec=2
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

write 0644 /etc/systemd/system/rungwise-ray.service <<'RUNGWISE'
[Unit]
Description=The Ray node of this machine
Wants=network-online.target
Requires=rungwise-install.service rungwise-scratch.service rungwise-token.service
After=network-online.target rungwise-install.service rungwise-scratch.service rungwise-token.service
StartLimitIntervalSec=0

[Service]
User=rungwise
StateDirectory=rungwise
RuntimeDirectory=rungwise-ray
WorkingDirectory=/var/lib/rungwise
Environment=HOME=/var/lib/rungwise RUNGWISE_SCRATCH=/scratch
ExecStart=/opt/rungwise/bin/python -m rungwise_aws ray
Restart=on-failure
RestartSec=5
# On SIGTERM, as when the machine is shut down, `ray start` drains the node for 30 s, so that
# training is saved, and ends the rest.
KillMode=mixed
TimeoutStopSec=60
# Ray ends the worker that takes too much memory; the kernel's choice must not end the node.
OOMPolicy=continue
LimitNOFILE=1048576
LimitMEMLOCK=infinity
LimitCORE=0
TasksMax=infinity
# Devices stay visible: GPUs and EFA.
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
ReadWritePaths=/scratch

[Install]
WantedBy=multi-user.target
RUNGWISE

write 0644 /etc/systemd/system/rungwise-scratch.service <<'RUNGWISE'
# Without a mount namespace of its own: what it mounts is for all.
[Unit]
Description=Mount the scratch folder of rungwise
Requires=rungwise-install.service
After=rungwise-install.service dlami-nvme.service

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=RUNGWISE_SCRATCH=/scratch
ExecStart=/opt/rungwise/bin/python -m rungwise_aws scratch
NoNewPrivileges=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK

[Install]
WantedBy=multi-user.target
RUNGWISE

write 0644 /etc/systemd/system/rungwise-token.service <<'RUNGWISE'
[Unit]
Description=Fetch the token of the Ray cluster, or make it on the head
Wants=network-online.target
Requires=rungwise-install.service
After=network-online.target rungwise-install.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/opt/rungwise/bin/python -m rungwise_aws token
# A worker waits for the head, and the head for its rights.
TimeoutStartSec=infinity
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
ReadWritePaths=/etc/rungwise
CapabilityBoundingSet=CAP_CHOWN
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX

[Install]
WantedBy=multi-user.target
RUNGWISE

systemctl daemon-reload
echo "rungwise: starting rungwise-install.service rungwise-journal.service rungwise-leave.service rungwise-notice.service rungwise-ray.service rungwise-scratch.service rungwise-token.service; see journalctl -u 'rungwise-*'"
systemctl enable --now rungwise-install.service rungwise-journal.service rungwise-leave.service rungwise-notice.service rungwise-ray.service rungwise-scratch.service rungwise-token.service
echo "rungwise: the units of this machine were started"
