#!/bin/bash
# Turns a machine with Debian 12 into a node of a fleet of sandboxes. Run once, as root.
set -euo pipefail
umask 077
# SETTINGS
home=/var/lib/journeyman
install -d -m 0700 "$home" /etc/journeyman

export DEBIAN_FRONTEND=noninteractive
for attempt in 1 2 3 4 5; do
  # A new machine's first minutes: the network or another apt may still be busy.
  if apt-get update && apt-get install -y --no-install-recommends \
    ca-certificates curl gcc git libc6-dev python3 python3-venv; then
    break
  fi
  [ "$attempt" = 5 ] && { echo "journeyman: packages cannot be installed" >&2; exit 1; }
  sleep 10
done

python3 -m venv "$home/venv"
"$home/venv/bin/pip" install "$JOURNEYMAN_PACKAGE"
JOURNEYMAN_HOME="$home" "$home/venv/bin/python" -m journeyman.sandbox.node.setup

# The node's id is the instance's, which the provider knows the host by. Only version 2 of the
# metadata service is asked; it is one hop away, out of reach for what runs in a sandbox.
metadata=http://169.254.169.254/latest
session=$(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/api/token")
read_metadata() { curl -fsS -H "X-aws-ec2-metadata-token: $session" "$metadata/meta-data/$1"; }
node=$(read_metadata instance-id)
address=$(read_metadata local-ipv4)

printf '%s' "$JOURNEYMAN_TICKET" > /etc/journeyman/ticket
cat > /etc/systemd/system/journeyman-node.service <<UNIT
[Unit]
Description=Journeyman sandbox node
Wants=network-online.target
After=network-online.target

[Service]
Environment=JOURNEYMAN_HOME=$home
ExecStart=$home/venv/bin/journeyman sandbox fleet join $JOURNEYMAN_CONTROL \\
  --node $node --address http://$address:$JOURNEYMAN_PORT \\
  --driver $JOURNEYMAN_DRIVER --port $JOURNEYMAN_PORT --ticket-file /etc/journeyman/ticket
Restart=always
RestartSec=2
# Its sandboxes end with the service, not a control group of systemd's choosing.
KillMode=mixed
LimitNOFILE=1048576
TasksMax=infinity
Delegate=yes

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --now journeyman-node.service
