#!/bin/bash
# Opens what compress wrote with transformers, PEFT, safetensors, mergekit and lm-eval, and what they wrote with compress, for every
# architecture, and writes a table of what agrees.
#
#   compare/interop.sh [OUT]
#
# OUT (default: interop-out) gets interop.md and interop.json beside the models that were made. Peers are taken from the Pythons
# that INTEROP_VENV (torch, transformers, peft, safetensors, tokenizers), INTEROP_MERGEKIT_VENV and INTEROP_LMEVAL_VENV name;
# where one is not set, an environment with the pinned versions is made in OUT (PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# saves the GPU parts of torch). COMPRESS_ORACLE (default: ../shared/oracle beside the
# repository) adds the checkpoints of the oracles, if there are any; nothing else is needed but this clone. ONLY=llama takes the
# models whose names fit that expression; with interop.json in OUT the other rows stay. Ends with 1 if anything disagrees.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${1:-interop-out}")
mkdir -p "$out"

# peers NAME VENV PACKAGE...: an environment, made once; prints its Python
peers() {
  local venv=${2:-$out/venv-$1}
  if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install -q "${@:3}" >&2
  fi
  echo "$venv/bin/python"
}
common=(torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 tokenizers==0.23.3 numpy pyyaml)
python=$(peers peers "${INTEROP_VENV:-}" "${common[@]}" peft==0.21.2)
lmeval=$(peers lmeval "${INTEROP_LMEVAL_VENV:-}" "${common[@]}" lm_eval==0.4.13 accelerate)
mergekit=$(peers mergekit "${INTEROP_MERGEKIT_VENV:-}" "${common[@]}")
if ! "$mergekit" -c 'import mergekit' 2>/dev/null; then # it pins older versions of these than it runs with
  "$mergekit" -m pip install -q --no-deps mergekit==0.1.5
  "$mergekit" -m pip install -q pydantic==2.14.3 immutables==0.21 click==8.5.1 accelerate==1.15.0 datasets==5.2.0 peft==0.21.2 scipy==1.17.1 sentencepiece==0.2.3 protobuf
fi

oracle=${COMPRESS_ORACLE:-$repo/../shared/oracle}
[ -d "$oracle/models" ] || oracle=
(cd "$repo" && go build -o "$out/compress" ./cmd/compress)
"$python" "$repo/compare/interop.py" --compress "$out/compress" --work "$out/work" --oracle "$oracle" --only "${ONLY:-}" \
  --mergekit "$mergekit" --lmeval "$lmeval" --markdown "$out/interop.md" --json "$out/interop.json"
