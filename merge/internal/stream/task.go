package stream

import (
	"math"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/method"
)

// Task is a group of one tensor as task arithmetic that a device can do: what its program computes, as numbers.
type Task struct {
	arithmetic kernels.Arithmetic
	zero       bool // the base is zero: a sum of the inputs themselves
	random     bool
	restore    bool // Σ|δ| of every input is restored after dropping
	sources    []kernels.Source
	tensor     *method.Tensor
}

// Elsewhere is a suffix for what identifies a merge: the device, if it is not the CPU.
func Elsewhere(dev kernels.Device) string {
	if dev == nil || dev.Info().Host {
		return ""
	}
	return " on " + dev.Info().Name
}

// Away is a device that is not the CPU; nil if it is, or if there is none. To ask a device takes longer than
// to merge a small tensor, as it looks how much memory is free, so it is asked once.
func Away(dev kernels.Device) kernels.Device {
	if dev == nil || dev.Info().Host {
		return nil
	}
	return dev
}

// TaskOf describes the merge of one tensor by a method, for a device that is not the CPU, see [Away]; nil if
// there is none, or if that cannot do exactly that.
func TaskOf(there kernels.Device, name string, tensors []*method.Tensor) *Task {
	if there == nil || len(tensors) != 1 {
		return nil
	}

	t := tensors[0]
	if n := len(t.Inputs); n == 0 || n > kernels.MaxModels || t.N == 0 || t.N > math.MaxInt32 {
		return nil
	}

	k := &Task{tensor: t, arithmetic: kernels.Arithmetic{Lambda: 1}}
	weights, sum := make([]float64, len(t.Inputs)), 0.0
	for j, in := range t.Inputs {
		weights[j] = in.Params.Number("weight")
		sum += weights[j]
	}

	// The methods whose whole arithmetic a device does in one pass; the formulas are those of package method.
	normalize := t.Params.Bool("normalize")
	switch name {
	case "linear":
		k.zero = true
		if normalize {
			for j := range weights {
				weights[j] /= sum
			}
		}
	case "task_arithmetic", "dare_linear", "ties", "dare_ties":
		if !t.Base {
			return nil
		}

		k.arithmetic.Consensus = name == "ties" || name == "dare_ties"
		k.arithmetic.Normalise = k.arithmetic.Consensus && normalize
		lambda := 1.0
		if t.Params.Has("lambda") {
			lambda = t.Params.Number("lambda")
		}
		if !k.arithmetic.Consensus && normalize && math.Abs(sum) >= 1e-8 {
			lambda /= sum
		}

		k.arithmetic.Lambda = float32(lambda)
	default:
		return nil
	}

	for _, w := range weights {
		k.sources = append(k.sources, kernels.Source{Weight: float32(w)})
	}
	if k.sparse(name, weights) {
		return k
	}

	return nil
}

// sparse adds what each input keeps; false if a device does otherwise.
func (k *Task) sparse(name string, weights []float64) bool {
	if name == "linear" || name == "task_arithmetic" {
		return true
	}

	k.random = name != "ties"
	rule := ""
	if k.tensor.Params.Bool("rescale") {
		rule = "l1"
		if k.tensor.Params.Has("rescale_norm") {
			rule = k.tensor.Params.Text("rescale_norm")
		}
	}

	// Weights that restore a norm would count in the mean over those who agree, where the CPU takes the recipe's.
	if rule != "" && (k.arithmetic.Normalise || rule != "l1" && rule != "inverse_density" && rule != "none") {
		return false
	}

	for j, in := range k.tensor.Inputs {
		d, s := in.Params.Number("density"), &k.sources[j]
		switch {
		case d >= 1:
			continue
		case !(d > 0):
			return false
		case !k.random && k.tensor.RandomTies: // a device keeps of equal differences the first ones
			return false
		case k.random:
			s.Share = uint32(d * (1 << 32))
		default:
			s.Keep = max(1, int(d*float64(k.tensor.N)))
		}

		if k.random && s.Share == 0 {
			return false
		}
		if rule == "inverse_density" {
			s.Weight = float32(weights[j] * (1 / d))
		}

		k.restore = k.restore || rule == "l1"
	}

	return true
}

// whole reports whether the task needs all elements at once.
func (k *Task) whole() bool {
	for _, s := range k.sources {
		if s.Keep > 0 {
			return true
		}
	}
	return k.restore
}
