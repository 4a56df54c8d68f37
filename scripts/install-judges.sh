#!/usr/bin/env bash
# Everything that judges the appliance and is not a Python package: kcat, KafkaJS and its codecs, Apache Kafka's
# Java clients, tools and Streams, Apache ZooKeeper's server; Prometheus; Chromium; a program on franz-go; and what the ZeroMQ
# examples in Node and Go import.
# Idempotent and quick when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install-debian.sh kcat groff-base
command -v node >/dev/null || scripts/install-debian.sh nodejs
command -v npm >/dev/null || scripts/install-debian.sh npm

for folder in tests/clients/kafkajs examples/zeromq/node; do
    if [[ ! "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ]]; then
        (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
        touch "$folder/node_modules/.package-lock.json"
    fi
done

command -v go >/dev/null || scripts/install-debian.sh golang-go
(cd examples/zeromq/go && go mod download)
scripts/install-franz-go.sh

scripts/install-kafka.sh
scripts/install-kafka-streams.sh
scripts/install-zookeeper.sh
scripts/install-prometheus.sh
scripts/install-chromium.sh
