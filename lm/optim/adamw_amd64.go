//go:build amd64 && !noasm

package optim

import "github.com/modelcompress/compress/internal/isa"

//go:noescape
func adamAVX2(k *adamStep)

// haveVectors says whether the processor runs this build's assembly.
var haveVectors = isa.Usable(isa.Disabled()).AVX2NoFMA

func adamVectors(k *adamStep) { adamAVX2(k) }
