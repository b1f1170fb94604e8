package modelcmd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/safetensors"
)

// Pass is a forward pass that is to be written, and perhaps a backward pass that is to be run.
type Pass struct {
	Model       *lm.Model
	Result      *lm.Result    // of the forward pass
	IDs, Labels [][]int32     // of B sequences of T tokens; no labels: the ids themselves
	Grad        bool          // computes and writes the gradient of the loss for every parameter
	Adapter     *lora.Adapter // the gradients are those of its parameters instead; nil: there is none
	Progress    func(name string, done, total int64)

	grads []string        // parameters whose gradients are written
	low   []lora.Gradient // of the adapter
	out   *safetensors.Writer
}

// Write writes loss [1], loss_per_token [B,T-1], logits [B,T,V], hidden.i [B,T,C] where the result has them,
// and grad.NAME in the parameter's shape, all F32. A gradient goes to the file as soon as it is there. It
// returns how many gradients there are. The file appears when it is complete.
func (p *Pass) Write(ctx context.Context, path string, overwrite bool) (gradients int, err error) {
	if p.Grad && p.Adapter != nil {
		if _, p.low, err = p.Adapter.Gradients(ctx, p.Model, p.IDs, p.Labels); err != nil {
			return 0, err
		}
	}

	p.out, err = safetensors.Create(path, p.infos(), nil, safetensors.Options{Overwrite: overwrite})
	if err != nil {
		return 0, err
	}
	defer p.out.Abort()

	var losses []byte
	for _, row := range p.Result.LossPerToken {
		losses = appendF32(losses, row...)
	}

	err = errors.Join(p.out.WriteTensor("loss", appendF32(nil, p.Result.Loss)),
		p.out.WriteTensor("loss_per_token", losses), p.mat("logits", p.Result.Logits))
	for i, h := range p.Result.Hidden {
		err = errors.Join(err, p.mat(fmt.Sprintf("hidden.%d", i), h))
	}

	for _, g := range p.low {
		var data []byte
		for i := range g.Value.Rows {
			for _, v := range g.Value.RowF32(i) {
				data = appendF32(data, float64(v))
			}
		}

		err = errors.Join(err, p.out.WriteTensor(gradName(g.Name), data))
	}
	if err == nil && p.Grad && p.Adapter == nil {
		err = p.gradients(ctx)
	}
	if err != nil {
		return 0, err
	}

	return len(p.grads) + len(p.low), p.out.Finish()
}

// infos lays out the file.
func (p *Pass) infos() []safetensors.Info {
	f32 := func(name string, shape ...int64) safetensors.Info {
		return safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape}
	}
	config := p.Model.Config()
	rows, length := int64(len(p.IDs)), int64(len(p.IDs[0]))
	infos := []safetensors.Info{
		f32("loss", 1), f32("loss_per_token", rows, length-1), f32("logits", rows, length, int64(config.Vocab)),
	}
	for i := range p.Result.Hidden {
		infos = append(infos, f32(fmt.Sprintf("hidden.%d", i), rows, length, int64(config.Hidden)))
	}
	for _, g := range p.low {
		infos = append(infos, f32(gradName(g.Name), g.Shape...))
	}
	if p.Grad && p.Adapter == nil {
		p.grads = p.Model.Tensors()
	}

	for _, name := range p.grads {
		info, _ := p.Model.Info(name)
		infos = append(infos, f32(gradName(name), info.Shape...))
	}

	return infos
}

func gradName(parameter string) string { return "grad." + parameter }

func (p *Pass) gradients(ctx context.Context) error {
	done := int64(0)
	_, err := p.Model.Backward(ctx, p.IDs, lm.BackwardOptions{Labels: p.Labels, Hooks: &lm.Hooks{
		WeightGrad: func(name string, g kernels.Mat) error {
			done++
			p.Progress("gradients", done, int64(len(p.grads)))
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
func (p *Pass) mat(name string, x kernels.Mat) error {
	rows := 1
	if x.Stride == x.Cols {
		rows = max(1, min(x.Rows, pieceSize/(4*x.Cols)))
	}

	buf := make([]byte, 4*x.Cols*rows)
	for i := 0; i < x.Rows; i += rows {
		piece := buf[:4*x.Cols*min(rows, x.Rows-i)]
		if err := p.Model.Device().Download(piece, x.Buf, x.Off+i*x.Stride); err != nil {
			return err
		}
		if err := p.out.WriteAt(name, piece, 4*int64(i)*int64(x.Cols)); err != nil {
			return err
		}
	}

	return nil
}
