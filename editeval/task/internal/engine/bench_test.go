package engine

import "testing"

// Passes of 1,000 documents of four choices behind a common beginning of 1,000 tokens.
func BenchmarkPlan(b *testing.B) {
	var jobs []job
	for d := range 1000 {
		ids := make([]int32, 1060)
		for i := 1000; i < len(ids); i++ {
			ids[i] = int32(d*31+i) % 97
		}

		for c := range 4 {
			one := append(ids[:len(ids):len(ids)], int32(c))
			jobs = append(jobs, job{Sequence: Sequence{IDs: one, Target: make([]int32, 2)}, index: len(jobs)})
		}
	}

	for b.Loop() {
		for _, p := range plan(append([]job(nil), jobs...), defaultBudget, true) {
			grow(p, true)
		}
	}
}
