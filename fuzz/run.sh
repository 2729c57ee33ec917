#!/usr/bin/env bash
# Fuzz for a time: fuzz/run.sh MINUTES [FAMILY...]; all families side by side, each in one process.
# Needs a Python with atheris and ckptconv's dependencies: PYTHON=... ; corpora, logs and findings: FUZZ_WORK=... ;
# logs of this run: FUZZ_LOGS=... ; niceness: FUZZ_NICE=...
set -euo pipefail
cd "$(dirname "$0")"
minutes=$1
shift
families=("${@:-}")
[ -n "${families[0]}" ] || families=(tf pytorch hdf5 json numpy flax orbax zoo rules)
work=${FUZZ_WORK:-/tmp/ckptconv-fuzz}
logs=${FUZZ_LOGS:-$work/logs}
mkdir -p "$logs" "$work/findings"

one() { # one family until the time is up; an input that ends the process is a finding, and the next process goes on
  local family=$1 end=$(($(date +%s) + minutes * 60)) left
  while left=$((end - $(date +%s))) && [ "$left" -gt 5 ]; do
    echo "start $(date -u +%FT%TZ) $left" >>"$logs/$family"
    nice -n "${FUZZ_NICE:-5}" "${PYTHON:-python3}" target.py "$family" "$work" "-max_total_time=$left" >>"$logs/$family" 2>&1 || sleep 2
  done
}
for family in "${families[@]}"; do one "$family" & done
wait
ls "$work/findings"
