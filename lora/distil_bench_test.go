package lora

import (
	"os"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// BenchmarkDistil measures a step of distillation of 4 × 128 tokens beside its parts, each in turn: a step of the
// student alone and a pass of the teacher, both of the checkpoint that COMPRESS_BENCH_MODEL names. "of the parts" is
// the processor time of the step over the sum of theirs.
func BenchmarkDistil(b *testing.B) {
	dir := os.Getenv("COMPRESS_BENCH_MODEL")
	if dir == "" {
		b.Skip("COMPRESS_BENCH_MODEL names no checkpoint")
	}

	for _, top := range []int{64, -1} {
		b.Run(map[int]string{64: "64", -1: "all"}[top], func(b *testing.B) {
			student, teacher := openModel(b, dir, "cpu", lm.Options{}), openModel(b, dir, "cpu", lm.Options{})
			ids := scattered(student.Config().Vocab, 128)

			// One step of warming up in each, then steps in turn: what else the machine does falls on all alike.
			const alone, taught, forward = 0, 1, 2
			var spent [3]float64
			step := func(kind int) {
				o := Options{Kind: "lora", Rank: 8, Batch: 4, Steps: 2, LR: 1e-3}
				if kind == taught {
					o.Distil = &Distil{Teacher: NewTeacher(teacher), Top: top}
				}
				before := 0.0
				o.Each = func(s Step) {
					if s.Step == 0 {
						before = processorSeconds()
					} else {
						spent[kind] += processorSeconds() - before
					}
				}
				if _, err := Train(b.Context(), student, corpus.New(ids, ""), o); err != nil {
					b.Fatal(err)
				}
			}

			pass := func() {
				if _, err := teacher.Forward(b.Context(), ids, lm.ForwardOptions{Labels: ids}); err != nil {
					b.Fatal(err)
				}
			}

			pass()
			for b.Loop() {
				step(alone)
				step(taught)

				before := processorSeconds()
				pass()
				spent[forward] += processorSeconds() - before
			}
			b.ReportMetric(spent[taught]/(spent[alone]+spent[forward]), "of-the-parts")
			b.ReportMetric(spent[taught]/float64(b.N), "cpu-s/step")
			b.ReportMetric(spent[alone]/float64(b.N), "cpu-s/alone")
			b.ReportMetric(spent[forward]/float64(b.N), "cpu-s/teacher")
		})
	}
}

// BenchmarkKeepZeros measures steps of an adapter that keeps zeros of a pruned model beside steps of one that does not,
// in turn.
func BenchmarkKeepZeros(b *testing.B) {
	dir := os.Getenv("COMPRESS_BENCH_MODEL")
	if dir == "" {
		b.Skip("COMPRESS_BENCH_MODEL names no checkpoint")
	}

	m := openModel(b, dir, "cpu", lm.Options{})
	ids := scattered(m.Config().Vocab, 128)

	var spent [2]float64
	for b.Loop() {
		for kind := range spent {
			o := Options{Kind: "lora", Rank: 8, Batch: 4, Steps: 2, LR: 1e-3, KeepZeros: kind == 1}
			before := 0.0
			o.Each = func(s Step) {
				if s.Step == 0 {
					before = processorSeconds()
				} else {
					spent[kind] += processorSeconds() - before
				}
			}
			if _, err := Train(b.Context(), m, corpus.New(ids, ""), o); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(spent[1]/spent[0], "of-without")
}
