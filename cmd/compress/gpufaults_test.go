//go:build !nogpu && linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/modelcompress/compress/kernels/kerneltest"
)

// TestGraphicsFaultScripts runs the command lines of testdata/gpufaults, in which DRIVER is a stand-in of the
// NVIDIA driver (skipped without a C++ compiler): FAKE_CUDA says what it does wrong. NANO is the folder of the
// shipped models, SHALLOW one of the same with one decoder layer each, IDS a file with eight of their tokens.
func TestGraphicsFaultScripts(t *testing.T) {
	lib := kerneltest.StandIn(t)
	ids := filepath.Join(t.TempDir(), "ids.safetensors")
	if err := writeIDs(ids, 40, 7, 300, 12, 99, 501, 6, 230); err != nil {
		t.Fatal(err)
	}

	one := shallow(t, "base")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/gpufaults",
		Setup: func(e *testscript.Env) error {
			nano, err := filepath.Abs("../../testdata/nano")
			e.Setenv("NANO", nano)
			e.Setenv("SHALLOW", one)
			e.Setenv("IDS", ids)
			e.Setenv("DRIVER", lib)
			e.Setenv("COMPRESS_CUDA_DRIVER", lib)
			e.Setenv("COMPRESS_CUBLASLT", "off")
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": exitCode, "json": jsonValue,
			"same": same,
		},
	})
}

// writeIDs writes token ids, and labels equal to them, as one row.
func writeIDs(file string, ids ...uint64) error {
	header, err := json.Marshal(map[string]any{
		"input_ids": map[string]any{
			"dtype": "I64", "shape": []int{1, len(ids)},
			"data_offsets": []int{0, 8 * len(ids)},
		},
		"labels": map[string]any{
			"dtype": "I64", "shape": []int{1, len(ids)},
			"data_offsets": []int{8 * len(ids), 16 * len(ids)},
		},
	})
	if err != nil {
		return err
	}

	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	for range 2 {
		for _, id := range ids {
			data = binary.LittleEndian.AppendUint64(data, id)
		}
	}

	return os.WriteFile(file, data, 0o666)
}
