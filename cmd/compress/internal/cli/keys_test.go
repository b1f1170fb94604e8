package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeys: a key on each line; what is no key is told by its line, without it.
func TestKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	for text, want := range map[string]int{
		"0123456789abcdef\n\n  fedcba9876543210  \n": 2, "short\n": -1, "": -1, "\n\n": -1,
		"0123456789abcdef with a remark\n": -1,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := Keys("key-file", file, 16)
		if (err != nil) != (want < 0) || err == nil && len(keys) != want {
			t.Errorf("%q: %v, %v", text, keys, err)
		}
		if err != nil && (!IsUsage(err) || strings.Contains(err.Error(), "0123")) {
			t.Errorf("%q: %v", text, err)
		}
	}

	// A mark of the encoding is no part of the first key.
	if err := os.WriteFile(file, []byte("\ufeff0123456789abcdef\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if keys, err := Keys("key-file", file, 16); err != nil || len(keys) != 1 || keys[0] != "0123456789abcdef" {
		t.Errorf("%q, %v", keys, err)
	}

	if _, err := Keys("key-file", file+"none", 16); err == nil {
		t.Error("a file that is not there")
	}
}
