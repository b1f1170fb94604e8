#!/usr/bin/env bash
# Device check: builds test programs that need nothing but a driver and the C library, and runs them where there is a GPU.
#
#   kernels/_gen/cuda/check.sh build OUT    # on the machine with Go: OUT/cuda.test, OUT/compress, this script, torch_check.py
#   OUT/check.sh run [REPORT.json]          # on the machine with a GPU
#
# run does the conformance suite on every device, twice for equal bits, then the measurements by events, and writes one JSON report
# with the fractions of the copy bandwidth measured in the same run; where python3 has torch, its figures for the same work too.
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
	report=$(realpath "${2:-report.json}")
	cd "$here"
	./compress inspect --device cuda:0
	./cuda.test -test.v -test.run 'OnDevice' | grep -E '^(=== RUN|---|ok|PASS|FAIL| )' | grep -v '=== RUN'
	COMPRESS_CUDA_REPORT=$report ./cuda.test -test.run TestMeasureDevice
	if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
		python3 torch_check.py "$report"
	else
		echo "no torch with CUDA here: no comparison"
	fi
	cat "$report"
	;;
*)
	echo "usage: $0 build OUT | run [REPORT.json]" >&2
	exit 2
	;;
esac
