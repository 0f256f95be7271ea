#!/usr/bin/env bash
# FedGKT over Flower with TLS and keys by the commands of docs/flower.md, beside the same experiment in one process.
# Usage: benchmarks/flower_tls.sh [DIRECTORY]; needs CATCHMENT_DATA. Results and ledgers must be equal; what was measured
# goes to benchmarks/results/flower_tls.json.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
file="$here/experiments/flower/fedgkt-small.toml"
mkdir -p "${1:-flower-tls}" && cd "${1:-flower-tls}"
catchment() { "${PYTHON:-$here/.venv/bin/python}" -m catchment "$@"; }
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
catchment keys keys --clients 4 --host localhost
catchment server "$file" --keys keys --host 127.0.0.1 --port 9092 --out flower &
server=$!
until [ -e flower/flower/digest ]; do sleep 0.2; done
for k in 0 1 2 3; do
  catchment join 127.0.0.1:9092 --client-id $k --data "$CATCHMENT_DATA" --state "state-$k" --root-certificate keys/ca.crt \
    --key "keys/client-$k.key" --federation keys/federation.pub --allow features --allow labels --allow ids \
    --policy "device-$k.toml" --init
  catchment policy "device-$k.toml" --approve "$(cat flower/flower/digest)" > /dev/null
  catchment join --policy "device-$k.toml" --once > "client-$k.log" 2>&1 &
done
wait $server
catchment run "$file" --out one-process
cmp <(grep fingerprint flower/result.json) <(grep fingerprint one-process/result.json)
cmp flower/ledger.jsonl one-process/ledger.jsonl
"${PYTHON:-$here/.venv/bin/python}" - "$here/benchmarks/results/flower_tls.json" <<'END'
import json, sys
ways = {way: json.load(open(f"{way}/result.json")) for way in ("flower", "one-process")}
keys = ("accuracy", "rounds", "bytes", "seconds", "lost", "failed", "fingerprint")
json.dump({way: {key: result[key] for key in keys} for way, result in ways.items()}, open(sys.argv[1], "w"), indent=1)
END
