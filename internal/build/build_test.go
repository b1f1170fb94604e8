package build

import (
	"runtime/debug"
	"testing"
)

func TestRevision(t *testing.T) {
	setting := func(k, v string) debug.BuildSetting { return debug.BuildSetting{Key: k, Value: v} }
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, ""},
		{
			[]debug.BuildSetting{setting("vcs.revision", "0123456789abcdef"), setting("vcs.modified", "false")},
			"+0123456789ab",
		},
		{
			[]debug.BuildSetting{setting("vcs.modified", "true"), setting("vcs.revision", "0123456789abcdef")},
			"+0123456789ab.dirty",
		},
		{[]debug.BuildSetting{setting("vcs.modified", "true")}, ""},
	} {
		if got := revision(c.settings); got != c.want {
			t.Errorf("%v: %q, want %q", c.settings, got, c.want)
		}
	}
}

func TestIsRelease(t *testing.T) {
	for v, want := range map[string]bool{
		"v1.2.3": true, "v0.0.0-2026-abc": false, "(devel)": false, "": false,
		"v": false,
	} {
		if got := isRelease(v); got != want {
			t.Errorf("%q: %v", v, got)
		}
	}
	if Version() == "" {
		t.Error("no version")
	}
}
