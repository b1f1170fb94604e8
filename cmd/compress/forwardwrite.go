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

// passWriter writes the tensors of a forward pass and, where they are asked for, computes and writes the gradients.
type passWriter struct {
	job         *job
	model       *lm.Model
	result      *lm.Result
	ids, labels [][]int32
	flags       forwardFlags
	grads       []string // parameters whose gradients are written
	out         *safetensors.Writer
}

func (p *passWriter) write() (err error) {
	p.out, err = safetensors.Create(p.flags.out, p.infos(), nil, safetensors.Options{Overwrite: p.flags.overwrite})
	if err != nil {
		return err
	}
	defer p.out.Abort()
	var losses []byte
	for _, row := range p.result.LossPerToken {
		losses = appendF32(losses, row...)
	}
	err = errors.Join(p.out.WriteTensor("loss", appendF32(nil, p.result.Loss)), p.out.WriteTensor("loss_per_token", losses), p.mat("logits", p.result.Logits))
	for i, h := range p.result.Hidden {
		err = errors.Join(err, p.mat(fmt.Sprintf("hidden.%d", i), h))
	}
	if err == nil && p.flags.grad {
		err = p.gradients()
	}
	if err != nil {
		return err
	}
	return p.out.Finish()
}

// infos lays out the file.
func (p *passWriter) infos() []safetensors.Info {
	f32 := func(name string, shape ...int64) safetensors.Info {
		return safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape}
	}
	config := p.model.Config()
	rows, length := int64(len(p.ids)), int64(len(p.ids[0]))
	infos := []safetensors.Info{
		f32("loss", 1), f32("loss_per_token", rows, length-1), f32("logits", rows, length, int64(config.Vocab)),
	}
	for i := range p.result.Hidden {
		infos = append(infos, f32(fmt.Sprintf("hidden.%d", i), rows, length, int64(config.Hidden)))
	}
	if p.flags.grad {
		p.grads = p.model.Tensors()
	}
	for _, name := range p.grads {
		info, _ := p.model.Source().Info(name)
		infos = append(infos, f32(gradName(name), info.Shape...))
	}
	return infos
}

func gradName(parameter string) string { return "grad." + parameter }

// gradients runs the model backward; every gradient goes to the file as soon as it is there.
func (p *passWriter) gradients() error {
	bar := p.job.progress("gradients", int64(len(p.grads)))
	defer bar.end()
	done := int64(0)
	_, err := p.model.Backward(p.job.ctx, p.ids, lm.BackwardOptions{Labels: p.labels, Hooks: &lm.Hooks{
		WeightGrad: func(name string, g kernels.Mat) error {
			done++
			bar.set(done)
			return p.mat(gradName(name), g)
		},
	}})
	return err
}

func appendF32(dst []byte, values ...float64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
	}
	return dst
}

// pieceSize is about how many bytes of a tensor are brought from the device at a time.
const pieceSize = 1 << 20

// mat writes an F32 matrix from the model's device, a piece at a time.
func (p *passWriter) mat(name string, x kernels.Mat) error {
	rows := 1
	if x.Stride == x.Cols {
		rows = max(1, min(x.Rows, pieceSize/(4*x.Cols)))
	}
	buf := make([]byte, 4*x.Cols*rows)
	for i := 0; i < x.Rows; i += rows {
		piece := buf[:4*x.Cols*min(rows, x.Rows-i)]
		if err := p.model.Device().Download(piece, x.Buf, x.Off+i*x.Stride); err != nil {
			return err
		}
		if err := p.out.WriteAt(name, piece, 4*int64(i)*int64(x.Cols)); err != nil {
			return err
		}
	}
	return nil
}
