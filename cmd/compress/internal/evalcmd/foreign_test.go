package evalcmd

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/jobs"
)

// TestForeignItems: only runs of the plan, under their own names, are done.
func TestForeignItems(t *testing.T) {
	plan := &task.Plan{
		Models: []task.PlanModel{{Name: "base", Path: nano + "/base"}, {Name: "sums", Path: nano + "/sums"}},
		Tasks:  []string{nano + "/tasks/base.yaml"},
	}
	open, err := task.OpenBatch(plan, filepath.Join(t.TempDir(), "out"), task.BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()

	b := &batch{Batch: open} // without a seat nothing could be done
	for _, it := range []jobs.Item{
		{ID: "0-0", Data: []byte("null")},
		{ID: "0-0", Data: nil},
		{ID: "0-0", Data: []byte(`{"model":1,"task":0}`)},
		{ID: "2-0", Data: []byte(`{"model":2,"task":0}`)},
		{ID: "0--1", Data: []byte(`{"model":0,"task":-1}`)},
		{ID: "0-0", Data: []byte(`{"model":0,"task":0,"args":["prune","--overwrite"]}`)},
		{ID: "evil", Data: []byte(`{"model":0,"task":0}`)},
	} {
		if _, err := b.handle(t.Context(), it); !errors.Is(err, task.ErrPlan) {
			t.Errorf("%s %s: %v", it.ID, it.Data, err)
		}
	}
}
