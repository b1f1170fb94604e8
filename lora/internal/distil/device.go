package distil

import (
	"encoding/binary"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// hostOf is a matrix without gaps in host memory: itself, or a copy.
func hostOf(dev kernels.Device, info kernels.Info, x kernels.Mat) (kernels.Mat, error) {
	if info.Host {
		return x, nil
	}
	out := kernels.MatOf(kernels.NewHost(kernels.F32, x.Len()), x.Rows, x.Cols)
	return out, dev.Download(out.Buf.Bytes()[:4*x.Len()], x.Buf, x.Off)
}

// crossEntropy writes scale·(softmax(logits) - onehot(label)) to d, which may be logits, and the losses, for which buf,
// F64, has room.
func crossEntropy(dev kernels.Device, buf *kernels.Buffer, d, logits kernels.Mat, labels []int32, scale float64,
	losses []float64,
) error {
	n := len(labels)
	dev.Ops().CrossEntropyBackward(d, kernels.MatOf(buf, 1, n), logits, labels, float32(scale))
	if dev.Info().Host {
		copy(losses, buf.F64()[:n])
		return nil
	}

	raw := make([]byte, 8*n)
	if err := dev.Download(raw, buf, 0); err != nil {
		return err
	}
	for i := range losses {
		losses[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return nil
}
