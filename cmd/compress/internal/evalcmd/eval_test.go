package evalcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/task"
)

const nano = "../../../../testdata/nano"

// TestSuite: flags that stand for "as the task says" leave the options alone; all others reach them.
func TestSuite(t *testing.T) {
	o := Options{Tasks: []string{nano + "/tasks/base.yaml"}, Shots: -1, FewshotSeed: 7}
	if _, err := o.suite(); err != nil {
		t.Fatal(err)
	}
	if o.Task.Shots != nil || o.Task.Special != nil || *o.Task.Seed != 7 {
		t.Errorf("%+v", o.Task)
	}

	o.Shots, o.NoSpecial = 0, true
	if _, err := o.suite(); err != nil {
		t.Fatal(err)
	}
	if *o.Task.Shots != 0 || *o.Task.Special {
		t.Errorf("%+v", o.Task)
	}

	for name, change := range map[string]func(o *Options){
		"shots": func(o *Options) { o.Shots = -2 }, "limit": func(o *Options) { o.Task.Limit = -1 },
		"tasks": func(o *Options) { o.Tasks = []string{"no_such_task"} },
	} {
		bad := o
		change(&bad)
		if err := CheckFlags([]string{nano + "/base"}, bad); !cli.IsUsage(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConversation: which chat template is read, and how examples are written in it.
func TestConversation(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("own"), 0o666); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		chat, multiturn string
		template        string // "": none
		many            bool
	}{
		{NoChat, "", "", false},
		{NoChat, "false", "", false},
		{task.OwnChat, "", "own", true},
		{task.OwnChat, "true", "own", true},
		{task.OwnChat, "false", "own", false},
	} {
		o := Options{Chat: c.chat, Multiturn: c.multiturn}
		got, err := o.conversation(dir)
		switch {
		case err != nil:
			t.Errorf("%+v: %v", c, err)
		case (got == nil) != (c.template == ""):
			t.Errorf("%+v: %+v", c, got)
		case got != nil && (got.Template != c.template || got.Multiturn != c.many || got.Now == nil):
			t.Errorf("%+v: %+v", c, got)
		}
	}

	for _, o := range []Options{{Multiturn: "true"}, {Multiturn: "perhaps"}, {Chat: task.OwnChat, Multiturn: "yes"}} {
		if _, err := o.conversation(dir); !cli.IsUsage(err) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := Options{Chat: "tools"}
	if _, err := o.conversation(t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "--apply-chat-template: ") {
		t.Error(err)
	}
}

// TestInputs: what a plan names, as run wants to know it; a plan with faults names nothing.
func TestInputs(t *testing.T) {
	const text = "models: [a, {path: b, name: c, adapter: d}]\ntasks: [t, x.yaml]\ndata: [e]\n"
	paths, tasks, data := Inputs("p.yaml", []byte(text))
	if strings.Join(paths, " ") != "a b d e" || strings.Join(tasks, " ") != "t x.yaml" ||
		strings.Join(data, " ") != "e" {
		t.Errorf("%v %v %v", paths, tasks, data)
	}
	if paths, tasks, data := Inputs("p.yaml", []byte("models: []\n")); paths != nil || tasks != nil || data != nil {
		t.Errorf("%v %v %v", paths, tasks, data)
	}
	if err := CheckPlan("p.yaml", []byte("models: []\n")); !cli.IsUsage(err) {
		t.Error(err)
	}
}

// TestDifferences: a row for every figure of every model but the first; of one model alone its own figures, without
// standard errors.
func TestDifferences(t *testing.T) {
	markdown := func(r *task.BatchReport) string {
		t.Helper()
		var out bytes.Buffer
		if err := differences(r).Markdown(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}

	pair := task.Pair{Task: "sums", Filter: "none", Metric: "acc"}
	pair.A = 0.5
	pair.B = 0.25
	pair.Difference = -0.25
	got := markdown(&task.BatchReport{
		Models: []task.PlanModel{{Name: "base"}, {Name: "other"}}, Against: map[string][]task.Pair{"other": {pair}},
	})
	if !strings.Contains(got, "-0.2500") || !strings.Contains(got, "other") || strings.Count(got, "\n") != 3 {
		t.Error(got)
	}

	got = markdown(&task.BatchReport{
		Models: []task.PlanModel{{Name: "base"}},
		Results: map[string]map[string]map[string]any{"base": {
			"sums": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "sums", "sample_len": 3},
		}},
	})
	if strings.Count(got, "\n") != 3 || !strings.Contains(got, "0.5000") || strings.Contains(got, "0.1") {
		t.Error(got)
	}
}

// TestServerFlags: a model or a server, and of each only its own flags.
func TestServerFlags(t *testing.T) {
	plain := Options{Experts: openmodel.Auto}
	server := plain
	server.Server.URL = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		args   []string
		of     Options
		change func(o *Options)
	}{
		"nothing":      {nil, plain, func(*Options) {}},
		"both":         {[]string{"m"}, server, func(*Options) {}},
		"name alone":   {[]string{"m"}, plain, func(o *Options) { o.Server.Model = "x" }},
		"adapter":      {nil, server, func(o *Options) { o.Adapter = "x" }},
		"fast":         {nil, server, func(o *Options) { o.Fast = true }},
		"kv":           {nil, server, func(o *Options) { o.KV = "int8" }},
		"experts":      {nil, server, func(o *Options) { o.Experts = "top1" }},
		"no template":  {nil, server, func(o *Options) { o.Chat = task.OwnChat }},
		"no address":   {nil, server, func(o *Options) { o.Server.URL = "127.0.0.1" }},
		"few requests": {nil, server, func(o *Options) { o.Server.Requests = -1 }},
	} {
		o := c.of
		c.change(&o)
		if err := o.checkServer(c.args); !cli.IsUsage(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := server.checkServer(nil); err != nil {
		t.Error(err)
	}
}
