package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// writeForward writes the tensors of a forward pass of b sequences of t tokens.
func writeForward(m *lm.Model, r *lm.Result, o forwardFlags, b, t int) error {
	f32 := func(name string, shape ...int64) safetensors.Info {
		return safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape}
	}
	rows, length := int64(b), int64(t)
	infos := []safetensors.Info{
		f32("loss", 1), f32("loss_per_token", rows, length-1), f32("logits", rows, length, int64(m.Config().Vocab)),
	}
	for i := range r.Hidden {
		infos = append(infos, f32(fmt.Sprintf("hidden.%d", i), rows, length, int64(m.Config().Hidden)))
	}
	w, err := safetensors.Create(o.out, infos, nil, safetensors.Options{Overwrite: o.overwrite})
	if err != nil {
		return err
	}
	defer w.Abort()
	var losses []byte
	for _, row := range r.LossPerToken {
		losses = appendF32(losses, row...)
	}
	if err := errors.Join(w.WriteTensor("loss", appendF32(nil, r.Loss)), w.WriteTensor("loss_per_token", losses), writeMat(w, m, "logits", r.Logits)); err != nil {
		return err
	}
	for i, h := range r.Hidden {
		if err := writeMat(w, m, fmt.Sprintf("hidden.%d", i), h); err != nil {
			return err
		}
	}
	return w.Finish()
}

func appendF32(dst []byte, values ...float64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
	}
	return dst
}

// writeMat writes an F32 matrix from the model's device, a piece at a time.
func writeMat(w *safetensors.Writer, m *lm.Model, name string, x kernels.Mat) error {
	buf := make([]byte, 4*x.Cols)
	for i := range x.Rows {
		if err := m.Device().Download(buf, x.Buf, x.Off+i*x.Stride); err != nil {
			return err
		}
		if err := w.WriteAt(name, buf, int64(i)*int64(len(buf))); err != nil {
			return err
		}
	}
	return nil
}
