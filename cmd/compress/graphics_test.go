//go:build !nogpu

package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/modelcompress/compress/kernels/kerneltest"
)

// TestGraphicsScripts runs the command lines of testdata/graphics with the driver's stand-in, which runs the
// host build of the graphics kernels; without a C++ compiler they are skipped.
func TestGraphicsScripts(t *testing.T) {
	driver := kerneltest.StandIn(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/graphics",
		Setup: func(e *testscript.Env) error {
			nano, err := filepath.Abs("../../testdata/nano")
			e.Setenv("NANO", nano)
			e.Setenv("COMPRESS_CUDA_DRIVER", driver)
			e.Setenv("COMPRESS_CUBLASLT", "off")
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": exitCode, "json": jsonValue,
			"same": same,
		},
	})
}
