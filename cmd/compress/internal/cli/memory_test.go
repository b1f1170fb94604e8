package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRoom(t *testing.T) {
	dir := t.TempDir()
	if _, limited := memoryRoomIn(dir); limited {
		t.Error("a limit without files")
	}

	for name, text := range map[string]string{"memory.max": "1000\n", "memory.current": "400\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	if room, limited := memoryRoomIn(dir); !limited || room != 600 {
		t.Errorf("%d %v, want 600", room, limited)
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.max"), []byte("max\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, limited := memoryRoomIn(dir); limited {
		t.Error("max is no limit")
	}
}
