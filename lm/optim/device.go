package optim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// ErrDevice is the error of a device that makes no optimiser's steps, or has no room for the state.
var ErrDevice = errors.New("the device cannot hold the optimiser")

// DeviceAdamW is [AdamW] with values, gradients and state on a device away from the host, which makes the
// steps: the moments and the float32 copies of values that are not F32 stay there. Steps are rounded as on the
// host. State is what the last Fetch has brought back.
type DeviceAdamW struct {
	host    *AdamW
	dev     kernels.Device
	stepper kernels.Stepper
	there   map[string]*resident
}

// resident is the state of one parameter on the device; master is absent for values that are F32.
type resident struct{ m, v, master kernels.Mat }

var _ Optimizer = (*DeviceAdamW)(nil)

// NewDeviceAdamW returns an AdamW on a device, without state. The error wraps [ErrDevice] if that makes no
// steps, else it lists every option out of range.
func NewDeviceAdamW(o AdamWOptions, dev kernels.Device) (*DeviceAdamW, error) {
	stepper, ok := kernels.As[kernels.Stepper](dev)
	if !ok {
		return nil, fmt.Errorf("%s: %w", dev.Info().Name, ErrDevice)
	}
	host, err := NewAdamW(o)
	return &DeviceAdamW{host, dev, stepper, map[string]*resident{}}, err
}

// Reserve makes the state of a parameter before its first step. The error wraps [ErrDevice] if there is no room.
func (a *DeviceAdamW) Reserve(name string, value kernels.Mat) error {
	if a.there[name] != nil {
		return nil
	}

	r := &resident{}
	a.there[name] = r

	for _, m := range []*kernels.Mat{&r.m, &r.v, &r.master} {
		if m == &r.master && (value.DType() == kernels.F32 || !a.host.o.Master) {
			break
		}

		buf, err := a.dev.Alloc(kernels.F32, value.Len())
		if err != nil {
			return fmt.Errorf("%s: %w: %w", name, ErrDevice, err)
		}
		*m = kernels.MatOf(buf, value.Rows, value.Cols)
	}

	if !r.master.IsZero() {
		a.dev.Ops().Convert(r.master, value)
	}

	return nil
}

// kinds lists the buffers of a parameter by the names of state.
func (r *resident) kinds() map[string]kernels.Mat {
	all := map[string]kernels.Mat{"exp_avg": r.m, "exp_avg_sq": r.v}
	if !r.master.IsZero() {
		all["master"] = r.master
	}
	return all
}

// Apply implements [Optimizer]; value and gradient are on the device. Failures of the device are reported by
// its next Sync.
func (a *DeviceAdamW) Apply(p Param, s Step) error {
	if err := p.shaped(); err != nil {
		return err
	}
	if err := a.Reserve(p.Name, p.Value); err != nil {
		return err
	}

	slot, err := a.slot(p)
	if err != nil {
		return err
	}

	slot.step++
	k := a.host.step(p, s, slot.step)
	r := a.there[p.Name]
	ops := a.dev.Ops()
	step := kernels.AdamStep{
		Scale: k.scale, Decay: k.decay, Rise1: k.rise1, Beta2: k.beta2, Rise2: k.rise2, Root2: k.root2, Eps: k.eps,
		Step: k.step,
	}

	// The step is float32. Of a narrower parameter a float32 master is kept where asked for; without one, what a step
	// changes by less than half a unit of the narrow type is lost.
	switch {
	case p.Value.DType() == kernels.F32:
		a.stepper.AdamW(p.Value, r.m, r.v, p.Grad, step)
	case !r.master.IsZero():
		a.stepper.AdamW(r.master, r.m, r.v, p.Grad, step)
		ops.Convert(p.Value, r.master)
	default:
		buf, err := a.dev.Alloc(kernels.F32, p.Value.Len())
		if err != nil {
			slot.step--
			return fmt.Errorf("%s: %w: %w", p.Name, ErrDevice, err)
		}
		defer buf.Free()

		wide := kernels.MatOf(buf, p.Value.Rows, p.Value.Cols)
		ops.Convert(wide, p.Value)
		a.stepper.AdamW(wide, r.m, r.v, p.Grad, step)
		ops.Convert(p.Value, wide)
	}

	return nil
}

// slot counts the steps of a parameter. What Restore has brought goes to the device at its first step.
func (a *DeviceAdamW) slot(p Param) (*slot, error) {
	t := &a.host.table
	s, known := t.slots[p.Name]
	switch {
	case !known && t.restored:
		return nil, fmt.Errorf("%s: %w: the restored state lacks this parameter", p.Name, ErrState)
	case !known:
		s = &slot{bufs: map[string][]float32{}}
		if t.slots == nil {
			t.slots = map[string]*slot{}
		}
		t.slots[p.Name] = s
	case s.step >= maxStep:
		return nil, fmt.Errorf("%s: %w: more than %d steps", p.Name, ErrState, maxStep)
	}

	for kind, m := range a.there[p.Name].kinds() {
		v, ok := s.bufs[kind]
		switch {
		case !ok && !t.restored:
			continue
		case ok && v == nil: // on the device since
			continue
		case len(v) != m.Len():
			return nil, fmt.Errorf("%s: %w: %s has %d values, want %d", p.Name, ErrState, kind, len(v), m.Len())
		}

		if t.restored && len(v) > 0 {
			if err := a.dev.Upload(m.Buf, 0, kernels.WrapF32(v).Bytes()); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", p.Name, kind, err)
			}
		}

		s.bufs[kind] = nil
	}

	return s, nil
}

// Fetch brings the state to the host, for State.
func (a *DeviceAdamW) Fetch() error {
	for name, s := range a.host.slots {
		for kind, m := range a.there[name].kinds() {
			if s.bufs[kind] != nil { // not on the device yet
				continue
			}

			v := make([]float32, m.Len())
			if err := a.dev.Download(kernels.WrapF32(v).Bytes(), m.Buf, 0); err != nil {
				return fmt.Errorf("%s: %s: %w", name, kind, err)
			}

			s.bufs[kind] = v
		}
	}

	return nil
}

// State implements [Optimizer]: what Fetch has brought back.
func (a *DeviceAdamW) State() map[string][]float32 { return a.host.State() }

// Restore implements [Optimizer].
func (a *DeviceAdamW) Restore(state map[string][]float32) error { return a.host.Restore(state) }

// Free gives the state on the device back; the optimiser must not be used again.
func (a *DeviceAdamW) Free() {
	for _, r := range a.there {
		for _, m := range []kernels.Mat{r.m, r.v, r.master} {
			if !m.IsZero() {
				m.Buf.Free()
			}
		}
	}
	a.there = nil
}

// SumSquaresOn is [SumSquares] of a gradient on a device, in another order of the float64 sum. It waits for the result.
func SumSquaresOn(dev kernels.Device, g kernels.Mat) (float64, error) {
	if g.Len() == 0 {
		return 0, nil
	}

	acc, err := dev.Alloc(kernels.F64, g.Cols)
	if err != nil {
		return 0, err
	}
	defer acc.Free()

	dev.Ops().ColSumSq(kernels.MatOf(acc, 1, g.Cols), g)
	raw := make([]byte, 8*g.Cols)
	if err := errors.Join(dev.Ops().Sync(), dev.Download(raw, acc, 0)); err != nil {
		return 0, err
	}

	sum := 0.0
	for at := 0; at < len(raw); at += 8 {
		sum += math.Float64frombits(binary.LittleEndian.Uint64(raw[at:]))
	}

	return sum, nil
}

// ClipOn is [Clip] of gradients on a device.
func ClipOn(dev kernels.Device, params []Param, bound float64) (norm, coefficient float64, err error) {
	return clipBy(params, bound, func(g kernels.Mat) (float64, error) { return SumSquaresOn(dev, g) })
}
