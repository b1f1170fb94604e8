#!/usr/bin/env bash
# Device check: builds test programs that need nothing but a driver and the C library, and runs them where there is a GPU.
#
#   kernels/_gen/cuda/check.sh build OUT    # on the machine with Go: OUT/cuda.test, OUT/compress.gz, this script, torch_check.py (27 MB; amd64 unless GOARCH says else)
#   OUT/check.sh run [REPORT.json]          # on the machine with a GPU
#
# run does the tests on the device (conformance on every one, twice for equal bits), then the measurements by events, then torch where python3 has
# it, and writes one JSON report; a part that fails does not stop the others, and the exit code tells. CHECK_PARTS="tests measure torch"
# names the parts to do, where a command may not take as long as all of them (each takes minutes, the first use of a kernel some seconds more, while the
# driver compiles it): torch adds to the report of measure, which takes up what tests left beside it.
#
# The report's "lines" are the figures that promises are made about: fractions of the bandwidth of the memory and of a copy in the same run, of cuBLASLt and of
# the rate of pinned memory, times of a formula's mask, a forward pass and an adapter's step, torch's time for the same work divided by ours.
# "masks" counts the elements whose fate is another than by the host's scores, of them the near ties, and the largest margin; "conformance"
# names the tests that failed; "complete" is false if measuring stopped early.
#
# Where a command ends after some minutes, CHECK_TIMEOUT (15m) below that leaves the report of what was done.
#
# For a trial run with the stand-in of the driver (COMPRESS_CUDA_DRIVER), whose figures mean nothing: CHECK_SHRINK=64 divides the sizes, CHECK_RUN names other tests,
# CHECK_PYTHON another python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# Tests that open the machine's device with COMPRESS_CUDA_TESTS=device, or all devices.
on_device='OnDevice|^Test(TiesOfManyPieces|ChunksGiveTheBitsOfElements|Formula|FormulaVectors|ConstantsHaveNoMoments|InterpretedFormulasHaveTheBitsOfCompiledOnes|InterpreterHasRoom|FormulasFromManyGoroutines|Flash|FlashNotFinite|FlashBack|Merge|MergeManyModels|RandomDropping|AdamW|Shards|CholeskyAndSolves|ClosedDevice|WideHeads)$'

# find_blas prints each cuBLASLt that came with torch or with a toolkit, which the loader does not find.
find_blas() {
	"$python" -c 'import glob, os, torch
root = os.path.dirname(os.path.dirname(torch.__file__))
print(*glob.glob(root + "/nvidia/*/lib/libcublasLt.so.1[23]"), *glob.glob(root + "/torch/lib/libcublasLt.so.1[23]"), sep="\n")' 2>/dev/null || true
	ls /usr/local/cuda*/lib64/libcublasLt.so.1[23] 2>/dev/null || true
}

case "${1:-}" in
build)
	out=${2:?folder}
	mkdir -p "$out"
	out=$(cd "$out" && pwd)
	cd "$here/../../.."
	export CGO_ENABLED=0 GOOS=linux GOARCH=${GOARCH:-amd64}
	go test -c -trimpath -ldflags='-s -w' -o "$out/cuda.test" ./kernels/cuda
	go build -trimpath -ldflags='-s -w' -o "$out/compress" ./cmd/compress
	gzip -f "$out/compress"
	cp "$here/check.sh" "$here/torch_check.py" "$out/"
	chmod +x "$out/check.sh"
	;;
run)
	status=0
	report=$(realpath "${2:-report.json}")
	parts=${CHECK_PARTS:-tests measure torch}
	cd "$here"
	if [ ! -e ./compress ]; then gunzip -c compress.gz >compress; fi
	chmod +x ./cuda.test ./compress # a copy may have lost the mode of its files
	python=${CHECK_PYTHON:-python3}
	export PYTHONUNBUFFERED=1
	export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$here/.nv} # what the driver has compiled serves the processes that follow, also without a home
	if [ -z "${COMPRESS_CUBLASLT:-}" ]; then
		lt=$(find_blas | grep . | head -1 || true)
		if [ -n "$lt" ]; then export COMPRESS_CUBLASLT=$lt; fi
	fi
	echo "cuBLASLt: ${COMPRESS_CUBLASLT:-as the loader finds it}"
	if ! ./compress inspect --device cuda:0; then
		echo "no device to check: see the line above" >&2
		exit 1
	fi
	case " $parts " in *" tests "*)
		COMPRESS_CUDA_TESTS=device ./cuda.test -test.v -test.timeout ${CHECK_TIMEOUT:-15m} -test.run "${CHECK_RUN:-$on_device}" >"$report.log" 2>&1 || status=$?
		grep -E '^ *--- FAIL|^panic|^fatal|^ +[a-z_]+_test.go|^ok|^PASS|^FAIL|^--- ' "$report.log" || true
		;;
	esac
	case " $parts " in *" measure "*)
		COMPRESS_CUDA_REPORT=$report COMPRESS_CUDA_SHRINK=${CHECK_SHRINK:-1} ./cuda.test -test.timeout ${CHECK_TIMEOUT:-15m} -test.run '^TestMeasureDevice$' || status=$?
		;;
	esac
	case " $parts " in *" torch "*)
		if [ ! -s "$report" ]; then
			echo "no report to compare torch with" >&2
			status=1
		elif [ -n "${CHECK_SHRINK:-}" ]; then
			"$python" torch_check.py "$report" --device cpu --shrink "$CHECK_SHRINK" || status=$?
		elif "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
			"$python" torch_check.py "$report" || status=$?
		else
			echo "no torch with CUDA here: no comparison"
		fi
		;;
	esac
	if [ -s "$report" ]; then cat "$report"; fi
	exit "$status"
	;;
*)
	echo "usage: $0 build OUT | run [REPORT.json]" >&2
	exit 2
	;;
esac
