//go:build !noasm

package optim

import "github.com/modelcompress/compress/internal/isa"

// haveVectors says whether the processor runs this build's assembly.
var haveVectors = isa.Usable(isa.Disabled()).NEON

func adamVectors(k *adamStep) { adamNEON(k) }
