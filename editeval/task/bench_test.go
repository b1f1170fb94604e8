package task

import "testing"

// What an evaluation of 90 documents with 1,350 requests costs, the model's part included; the model is tiny,
// so that the rest shows.
func BenchmarkRun(b *testing.B) {
	o := open(b, nano+"/base")
	for b.Loop() {
		if _, _, err := evaluate(b, b.Context(), o, []string{nano + "/tasks/base.yaml"},
			Options{Bootstrap: -1}); err != nil {
			b.Fatal(err)
		}
	}
}
