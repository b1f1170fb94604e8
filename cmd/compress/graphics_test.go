//go:build !nogpu

package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/modelcompress/compress/kernels/kerneltest"
)

// TestGraphicsScripts runs the command lines of testdata/graphics with the driver's stand-in, which runs the
// host build of the GPU kernels; without a C++ compiler they are skipped. NANO is a folder of the shipped models
// with one decoder layer each.
func TestGraphicsScripts(t *testing.T) {
	driver := kerneltest.StandIn(t)
	nano := shallow(t, "base", "sums", "news")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/graphics",
		Setup: func(e *testscript.Env) error {
			e.Setenv("NANO", nano)
			e.Setenv("COMPRESS_CUDA_DRIVER", driver)
			e.Setenv("COMPRESS_CUBLASLT", "off")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": exitCode, "json": jsonValue,
			"same": same,
		},
	})
}
