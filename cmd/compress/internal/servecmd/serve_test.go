package servecmd

import (
	"strings"
	"testing"
)

// valid are options that nothing is wrong with.
func valid() Options {
	return Options{Listen: "127.0.0.1:0", Memory: "1GiB", MaxBody: "1MiB"}
}

// What others reach needs keys or the flag that names the risk, and every fault is named by its flag.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"usual":     {func(*Options) {}, ""},
		"local":     {func(o *Options) { o.Listen = "localhost:1" }, ""},
		"v6":        {func(o *Options) { o.Listen = "[::1]:1" }, ""},
		"all":       {func(o *Options) { o.Listen = ":8080" }, "there are no keys"},
		"others":    {func(o *Options) { o.Listen = "192.0.2.1:8080" }, "there are no keys"},
		"named":     {func(o *Options) { o.Listen = "example.org:8080" }, "there are no keys"},
		"keys":      {func(o *Options) { o.Listen, o.KeyFile = ":8080", "keys" }, ""},
		"anyone":    {func(o *Options) { o.Listen, o.Anyone = ":8080", true }, ""},
		"both":      {func(o *Options) { o.KeyFile, o.Anyone = "keys", true }, "exclude each other"},
		"no port":   {func(o *Options) { o.Listen = "localhost" }, "--listen"},
		"adapter":   {func(o *Options) { o.Adapters = []string{"a=b", "c=d"} }, ""},
		"nameless":  {func(o *Options) { o.Adapters = []string{"=b"} }, "--adapter"},
		"no folder": {func(o *Options) { o.Adapters = []string{"a"} }, "--adapter"},
		"twice":     {func(o *Options) { o.Adapters = []string{"a=b", "a=c"} }, "two have the name"},
		"memory":    {func(o *Options) { o.Memory = "much" }, "--kv-memory"},
		"body":      {func(o *Options) { o.MaxBody = "0B" }, "--max-body"},
		"queue":     {func(o *Options) { o.Queue = -1 }, "negative"},
	} {
		o := valid()
		c.change(&o)
		err := o.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestNameOf(t *testing.T) {
	for path, want := range map[string]string{
		"testdata/nano/base": "base", "a/b.Q4_K_M.gguf": "b.Q4_K_M", "a/": "a", "/x/.": "x",
		"/h/hub/models--org--name/snapshots/0123/": "org/name",
	} {
		if got := nameOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
