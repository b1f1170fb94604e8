package openmodel

import (
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// TestCheckWhole: a choice that splits requests, or cannot be, is refused without a model.
func TestCheckWhole(t *testing.T) {
	for choice, want := range map[string]string{
		"": "", Auto: "", Likeliest: "", "sums": "", "sums=0.5,plays=0.5": "", "auto:certain=0.5,most=2": "",
		"auto:by=sentence": "here a request goes one way", "top1:by=sentence": "here a request goes one way",
		"auto:by=word": "want sentence", "auto:cover=2": "cover 2", "auto:many=2": "want certain, cover",
		"auto:most=x": "want a number",
	} {
		err := CheckWhole(choice)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", choice, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !cli.IsUsage(err) {
			t.Errorf("%s: %v, want %q", choice, err, want)
		}
	}
}
