//go:build !noasm

package optim

import (
	"os"
	"strings"

	"golang.org/x/sys/cpu"
)

// haveVectors may be switched off as in package kernels/cpu.
var haveVectors = cpu.ARM64.HasASIMD &&
	!strings.Contains(","+strings.ReplaceAll(os.Getenv("COMPRESS_CPU_DISABLE"), " ", "")+",", ",neon,")

func adamVectors(k *adamStep) { adamNEON(k) }
