//go:build amd64 && !noasm

package optim

import (
	"os"
	"strings"

	"golang.org/x/sys/cpu"
)

//go:noescape
func adamAVX2(k *adamStep)

// haveVectors may be switched off as in package kernels/cpu.
var haveVectors = cpu.X86.HasAVX2 &&
	!strings.Contains(","+strings.ReplaceAll(os.Getenv("COMPRESS_CPU_DISABLE"), " ", "")+",", ",avx2,")

func adamVectors(k *adamStep) { adamAVX2(k) }
