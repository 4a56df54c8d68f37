#!/usr/bin/env bash
# Everything that judges the appliance and is not a Python package: kcat, KafkaJS and its codecs, Apache Kafka's
# Java clients, tools and Streams, Apache ZooKeeper's server. Idempotent and quick when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install-debian.sh kcat
command -v node >/dev/null || scripts/install-debian.sh nodejs
command -v npm >/dev/null || scripts/install-debian.sh npm

driver=tests/clients/kafkajs
if [[ ! "$driver/node_modules/.package-lock.json" -nt "$driver/package-lock.json" ]]; then
    (cd "$driver" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
    touch "$driver/node_modules/.package-lock.json"
fi

scripts/install-kafka.sh
scripts/install-kafka-streams.sh
scripts/install-zookeeper.sh
