#!/usr/bin/env bash
# Device check: builds test programs that need nothing but a driver and the C library, and runs them where there is a GPU.
#
#   kernels/_gen/cuda/check.sh build OUT    # on the machine with Go: OUT/cuda.test, OUT/compress, this script, torch_check.py
#   OUT/check.sh run [REPORT.json]          # on the machine with a GPU
#
# run does the conformance suite on every device, twice for equal bits, then the measurements by events, and writes one JSON report. Its
# "lines" are the figures that promises are made about: fractions of the bandwidth of the memory and of a copy in the same run, of cuBLASLt and of the
# rate of pinned memory, times of a formula's mask, a forward pass and an adapter's step; where python3 has torch, torch's time for
# the same work divided by ours. CHECK_SHRINK=64 divides the sizes and CHECK_PYTHON names a python3: for a trial run with the
# stand-in of the driver (COMPRESS_CUDA_DRIVER), whose figures mean nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

case "${1:-}" in
build)
	out=${2:?folder}
	mkdir -p "$out"
	out=$(cd "$out" && pwd)
	cd "$here/../../.."
	CGO_ENABLED=0 go test -c -o "$out/cuda.test" ./kernels/cuda
	CGO_ENABLED=0 go build -o "$out/compress" ./cmd/compress
	cp "$here/check.sh" "$here/torch_check.py" "$out/"
	;;
run)
	status=0
	report=$(realpath "${2:-report.json}")
	cd "$here"
	python=${CHECK_PYTHON:-python3}
	if [ -z "${COMPRESS_CUBLASLT:-}" ]; then # what came with torch, which the loader does not find
		lt=$("$python" -c 'import glob, os, torch; print((glob.glob(os.path.dirname(os.path.dirname(torch.__file__)) + "/nvidia/*/lib/libcublasLt.so.1[23]") + [""])[0])' 2>/dev/null || true)
		if [ -n "$lt" ]; then export COMPRESS_CUBLASLT=$lt; fi
	fi
	./compress inspect --device cuda:0
	./cuda.test -test.v -test.run "${CHECK_RUN:-OnDevice}" | grep -v '^=== ' || status=$? # measurements are made all the same
	COMPRESS_CUDA_REPORT=$report COMPRESS_CUDA_SHRINK=${CHECK_SHRINK:-1} ./cuda.test -test.run TestMeasureDevice
	if [ -n "${CHECK_SHRINK:-}" ]; then
		"$python" torch_check.py "$report" --device cpu --shrink "$CHECK_SHRINK"
	elif "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
		"$python" torch_check.py "$report"
	else
		echo "no torch with CUDA here: no comparison"
	fi
	cat "$report"
	exit "$status"
	;;
*)
	echo "usage: $0 build OUT | run [REPORT.json]" >&2
	exit 2
	;;
esac
