#!/usr/bin/env bash
# Fuzz for a time: fuzz/run.sh MINUTES [FAMILY...]; all families side by side, each in one process.
# Needs a Python with atheris and ckptconv's dependencies: PYTHON=... ; corpora, logs and findings: FUZZ_WORK=...
set -euo pipefail
cd "$(dirname "$0")"
minutes=$1
shift
families=("${@:-}")
[ -n "${families[0]}" ] || families=(tf pytorch hdf5 json numpy flax rules)
work=${FUZZ_WORK:-/tmp/ckptconv-fuzz}
mkdir -p "$work/logs" "$work/findings"

one() { # one family until the time is up; an input that ends the process is a finding, and the next process goes on
  local family=$1 end=$(($(date +%s) + minutes * 60)) left
  while left=$((end - $(date +%s))) && [ "$left" -gt 5 ]; do
    echo "start $(date -u +%FT%TZ) $left" >>"$work/logs/$family"
    /usr/bin/env time -f "cpu %U %S wall %e" nice -n 19 "${PYTHON:-python3}" target.py "$family" "$work" "-max_total_time=$left" >>"$work/logs/$family" 2>&1 || true
  done
}
for family in "${families[@]}"; do one "$family" & done
wait
"${PYTHON:-python3}" summary.py "$work"
