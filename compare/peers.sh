#!/bin/bash
# This program beside its peers (torch, transformers, peft, lm-eval, mergekit, OpenBLAS) on the same checkpoints, turn by turn, in one go.
#
#   compare/peers.sh [--quick] [--print] [--out DIR] [--only merge,forward,train,eval,prune,matmul] [--runs N] [--minutes N]
#
# Installs the peers into environments of their own below DIR (default: peers-out; 3 GB, of which mergekit's own take half, because
# it pins other versions), draws the checkpoints there from fixed seeds, and writes peers.md (the table) and peers.json (every repetition).
# One thread on each side; medians of five, and the quartiles. --quick takes small checkpoints and three repetitions: a check that all of
# it runs. --print says what would be done. No row begins after --minutes (22); what is left out is named. --quick takes about 3 minutes on a quiet
# machine. The network is needed for the installation alone.
#
# Instead of what would be installed or built: PEERS_VENV (torch, transformers, peft, lm-eval), MERGEKIT_VENV, COMPRESS (the program). PYTHON makes
# the environments (3.11 or later). TORCH_INDEX: where to take torch from, such as https://download.pytorch.org/whl/cpu, whose
# builds lack CUDA's GB. PEERS_YARD: a folder with checkpoints base, m1 and m2 to merge in place of drawn ones. PEERS_MODEL: a Llama in F32 to
# run, train and prune in place of the drawn one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=peers-out print='' args=()
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --print) print=1 ;;
    -h | --help) sed -n '2,/^set/{s/^# \{0,1\}//;/^set/!p}' "$0"; exit ;;
    *) args+=("$1") ;;
  esac
  shift
done

# do_ prints a command, and runs it unless it is only to be printed.
do_() {
  echo "+ $*" >&2
  [ -n "$print" ] || "$@"
}

# venv DIR PACKAGE…: an environment with packages, unless it is there.
venv() {
  local dir=$1
  shift
  [ -x "$dir/bin/python" ] && [ -f "$dir/complete" ] && return
  do_ "${PYTHON:-python3}" -m venv "$dir"
  do_ "$dir/bin/pip" install -q torch==2.15.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
  do_ "$dir/bin/pip" install -q "$@"
  do_ touch "$dir/complete"
}

do_ mkdir -p "$out"
[ -n "$print" ] || out=$(cd "$out" && pwd)
peers=${PEERS_VENV:-$out/venv} mergekit=${MERGEKIT_VENV:-$out/mergekit} compress=${COMPRESS:-$out/compress}
[ -n "${PEERS_VENV:-}" ] || venv "$peers" transformers==5.23.0 peft==0.21.2 lm_eval==0.4.13 safetensors numpy
[ -n "${MERGEKIT_VENV:-}" ] || venv "$mergekit" mergekit==0.1.5
[ -n "${COMPRESS:-}" ] || do_ env CGO_ENABLED=0 go -C "$here/.." build -o "$compress" ./cmd/compress
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
do_ "$peers/bin/python" "$here/peers.py" --out "$out" --compress "$compress" --mergekit "$mergekit/bin/python" ${PEERS_YARD:+--yard "$PEERS_YARD"} ${PEERS_MODEL:+--model "$PEERS_MODEL"} "${args[@]}"
