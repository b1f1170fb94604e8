// Package kerneltest is the conformance suite of compute backends. [Run] holds every operation of a device to
// the reference backend: at lengths around every vector width, on strided views at odd offsets, for all weight
// types, with NaN, infinities and empty matrices, with guard values around every operand, in place where that
// is allowed, and with bad shapes, which must panic. [RunAll] does so for several devices and demands equal bits of
// some, for backends that promise it for any number of threads; [Same] demands them of two. [Benchmark] times every
// operation. An operation of [kernels.Ops] without a case here is a failure.
//
// # Use
//
//	func TestDevice(t *testing.T) { kerneltest.Run(t, mine.New()) }
//	func BenchmarkDevice(b *testing.B) { kerneltest.Benchmark(b, mine.New()) }
//
// # Rules
//
// Rules beyond the documentation of Ops: what lies outside a destination's view keeps its bits, and so do all other
// operands; a destination's Packed is dropped; a NaN or infinity spreads to at least the elements that the reference
// makes non-finite, and only where the reference has one may a result be non-finite.
package kerneltest

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// cases has one test for every field of kernels.Ops.
var cases = map[string]func(*run){
	"MatMulNT": matMulNT, "MatMulNN": matMulNN, "MatMulTN": matMulTN,
	"MatMulSparse": matMulSparse, "Expand": expand,
	"MatMulQuantised": matMulQuantised, "GatherQuantised": gatherQuantised, "ExpandQuantised": expandQuantised,
	"Gather": gather, "ScatterAdd": scatterAdd, "AddLowRank": addLowRank,
	"RMSNorm": rmsNorm, "LayerNorm": layerNorm, "RoPE": rope, "Attention": attention,
	"Activate": activate, "Gate": gate, "Add": add, "Softcap": softcap,
	"Softmax": softmax, "CrossEntropy": crossEntropy, "Convert": convert,
	"RMSNormBackward": rmsNormBackward, "LayerNormBackward": layerNormBackward, "AttentionBackward": attentionBackward,
	"ActivateBackward": activateBackward, "GateBackward": gateBackward, "SoftcapBackward": softcapBackward,
	"SoftmaxBackward": softmaxBackward, "CrossEntropyBackward": crossEntropyBackward, "GatherBackward": gatherBackward,
	"ColSum": colSum, "AddSquare": addSquare,
	"ColSumSq": colSumSq, "SelectRows": selectRows, "SelectAll": selectAll, "SelectNM": selectNM,
	"ApplyMask": applyMask, "NonFinite": nonFinite, "CountZero": countZero,
	"Sync": func(r *run) { r.do(func(*kernels.Ops, view) {}) },
}

// Subject is a device under test, and what is asked of it.
type Subject struct {
	Name   string
	Device kernels.Device
	Twins  []kernels.Device // opened with other options: every operation gives the bits that it gives on Device
	Only   []string         // the operations that are tested, all if there are none
}

// Run tests every operation of dev against the reference backend, or only those named.
func Run(t *testing.T, dev kernels.Device, only ...string) {
	RunAll(t, Subject{Device: dev, Only: only})
}

// RunAll is [Run] for several devices at once. They see the same operands and are held to the same results of the
// reference, which cost more than most devices take for theirs.
func RunAll(t *testing.T, subjects ...Subject) {
	each(t, ref.New(), func(op string) (list []*side) {
		for _, s := range subjects {
			if len(s.Only) > 0 && !slices.Contains(s.Only, op) {
				continue
			}

			first := &side{name: s.Name, dev: s.Device}
			list = append(list, first)
			for i, d := range s.Twins {
				list = append(list, &side{name: fmt.Sprintf("%s, twin %d", s.Name, i+1), dev: d, like: first})
			}
		}

		return list
	})

	fields := reflect.TypeFor[kernels.Ops]()
	for _, s := range subjects {
		for _, name := range s.Only {
			if _, ok := fields.FieldByName(name); !ok {
				t.Errorf("kernels.Ops has no %s", name)
			}
		}
	}
}

// Same tests that every operation gives equal bits on two devices of one backend, opened with different options.
func Same(t *testing.T, a, b kernels.Device) {
	each(t, b, func(string) []*side { return []*side{{dev: a, same: true}} })
}

// each runs the case of every operation that there are sides for.
func each(t *testing.T, other kernels.Device, sides func(op string) []*side) {
	fields := reflect.TypeFor[kernels.Ops]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		list := sides(name)
		if len(list) == 0 {
			continue
		}

		t.Run(name, func(t *testing.T) {
			test, ok := cases[name]
			if !ok {
				t.Fatalf("package kerneltest has no case for %s", name)
			}

			for _, s := range append(list, &side{dev: other}) {
				if reflect.ValueOf(s.dev.Ops()).Elem().Field(i).IsNil() {
					t.Fatalf("%s has no %s; complete it with device.Complete", s.dev.Info().Name, name)
				}
			}

			test(newRun(t, name, other, list...))
		})
	}
}

// newRun begins the test of an operation. Its operands are the same in every run.
func newRun(tb testing.TB, op string, other kernels.Device, sides ...*side) *run {
	for i, s := range sides {
		s.index = i
	}
	return &run{tb: tb, sides: sides, other: other, rng: rand.New(rand.NewPCG(seed(op), 1))}
}

func seed(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// widths surround the vector widths of the instruction sets in use: 4, 8, 16, 32 and 64 elements.
var widths = []int{
	1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 127, 128, 129, 255,
	257,
}

// shapes are rows and columns: all widths, empty matrices, a shape large enough to be given to several threads, and a
// single row that is.
func shapes() [][2]int {
	s := [][2]int{{0, 0}, {0, 5}, {3, 0}, {67, 1031}, {1, 70001}}
	for i, w := range widths {
		s = append(s, [2]int{1 + i%4, w})
	}
	return s
}

// weights are the element types of weights.
var weights = []kernels.DType{kernels.F32, kernels.BF16, kernels.F16}
