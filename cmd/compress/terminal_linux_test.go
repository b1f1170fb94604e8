package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// onTerminal runs a command line with a terminal for stdout and stderr, and returns what came out there.
func onTerminal(t *testing.T, args ...string) (code int, shown string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer master.Close()

	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip("no terminals here: ", err)
	}

	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}

	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}

	all := make(chan string)
	go func() {
		text, _ := io.ReadAll(master) // the end of a terminal is an error
		all <- string(text)
	}()

	code = run(args, tty, tty)
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}

	return code, <-all
}

// ownCodes are what the program itself sends to a terminal: colours and weights, and what moves its progress.
var ownCodes = regexp.MustCompile(`\x1b\[[0-9;]*[mAJK]`)

// evil is what a stranger may write into a name: a window's title, a cleared screen, a coloured word, hidden
// and reversed text, a bell.
const evil = "evil\x1b]0;owned\a\x1b[2J\x1b[31m\u009b1m\u202etxt\u2066\x7f"

// quiet fails if something of a stranger's text would act on the terminal.
func quiet(t *testing.T, shown string) {
	t.Helper()
	if !utf8.ValidString(shown) {
		t.Errorf("broken UTF-8: %q", shown)
	}

	rest := strings.ReplaceAll(ownCodes.ReplaceAllString(shown, ""), "\r", "")
	for _, r := range rest {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			t.Errorf("%U reaches the terminal: %.400q", r, shown)
			return
		}
	}

	for line := range strings.Lines(rest) {
		if len(line) > 2*cli.MaxLine {
			t.Errorf("a line of %d bytes: %.100q…", len(line), line)
		}
	}
}

// header is a safetensors file with the given header and some data.
func header(text string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) + text + strings.Repeat("\x00", 16)
}

// TestStrangersTextOnATerminal: whatever a file holds, no error, remark or table carries codes that steer a
// terminal, and no line is beyond measure; each parser has its turn.
func TestStrangersTextOnATerminal(t *testing.T) {
	dir := t.TempDir()
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}

	model := func(name string, files map[string]string) string {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(nano, "base"))); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			put(filepath.Join(name, file), text)
		}
		return filepath.Join(dir, name)
	}

	word, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}

	q, long := string(word), strings.Repeat("long ", 20_000)
	tensor := `{` + q + `:{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`
	out := filepath.Join(dir, "out")

	for name, args := range map[string][]string{
		"tensor names": {"inspect", filepath.Dir(put("tensors/model.safetensors", header(tensor))), "--tensors"},
		"tensor dtype": {
			"inspect",
			filepath.Dir(put("dtype/model.safetensors", header(strings.Replace(tensor, `"F32"`, q, 1)))),
		},
		"long tensor name": {
			"inspect",
			filepath.Dir(put("longname/model.safetensors", header(strings.Replace(tensor, q, `"`+long+`"`, 1)))),
			"--tensors",
		},
		"header": {"inspect", filepath.Dir(put("header/model.safetensors", header(evil+"\xff")))},
		"shard index": {
			"inspect",
			filepath.Dir(put("index/model.safetensors.index.json", `{"weight_map":{`+q+`:`+q+`}}`)),
		},
		"configuration": {
			"inspect",
			model("config", map[string]string{"config.json": `{"model_type":` + q + `,` + q + `:1}`}),
		},
		"broken config": {
			"ppl", model("broken", map[string]string{"config.json": evil}), "--data",
			nano + "/text/test.txt",
		},
		"unknown keys": {
			"inspect",
			model("keys", map[string]string{"config.json": `{"model_type":"llama",` + q + `:` + q + `}`}),
		},
		"tokenizer": {
			"tokenize",
			model("tok", map[string]string{"tokenizer.json": `{"model":{"type":` + q + `}}`}), "--text", "a",
		},
		"chat template": {
			"eval", model("chat", map[string]string{"chat_template.jinja": "{% " + evil + " %}"}),
			"--tasks", nano + "/tasks", "--apply-chat-template", "--out", out,
		},
		"recipe, key": {"merge", put("key.yaml", q+": 1\nmerge_method: linear\n"), "--out", out},
		"recipe, value": {
			"merge", put("value.yaml", "merge_method: "+q+"\nmodels: [{model: "+q+"}]\n"), "--out",
			out,
		},
		"recipe, raw":  {"merge", put("raw.yaml", "merge_method: [\n"+evil+"\xff\n"), "--out", out},
		"recipe, long": {"merge", put("long.yaml", "merge_method: "+long+"\n"), "--out", out},
		"plan":         {"run", put("plan.yaml", "jobs:\n  "+q+": {run: x}\n"), "--out", out},
		"records": {
			"edit", nano + "/base", "--edits", put("edits.jsonl", `{`+q+`:`+q+"}\n"+evil+"\n"),
			"--out", out,
		},
		"data": {"ppl", nano + "/base", "--data", put("data.jsonl", `{`+q+`:`+q+"}\n")},
		"task": {
			"eval", "tasks", "check",
			put("task.yaml", "task: "+q+"\n"+q+": 1\ndoc_to_text: '{{ "+"x | nofilter }}'\n"),
		},
		"adapter": {
			"lora", "inspect",
			filepath.Dir(put("adapter/adapter_config.json", `{"peft_type":`+q+`}`)),
		},
		"GGUF": {"inspect", filepath.Dir(put("gguf/"+evil+".gguf", "GGUF"+evil))},
		"pointer": {
			"inspect",
			filepath.Dir(
				put("lfs/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid "+evil+"\nsize 1\n")),
		},
		"name of a folder":    {"inspect", model(evil, nil)},
		"missing folder":      {"inspect", filepath.Join(dir, "missing"+evil)},
		"JSON":                {"inspect", filepath.Join(dir, "tensors"), "--tensors", "--json"},
		"what tokens spell":   {"tokenize", nano + "/base", "--text", evil},
		"a prompt on its way": {"generate", nano + "/base", "--prompt", "the" + evil, "--max-tokens", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, shown := onTerminal(t, args...)
			if strings.TrimSpace(shown) == "" {
				t.Error("nothing is shown")
			}
			quiet(t, shown)
			if name == "JSON" && !json.Valid([]byte(shown)) {
				t.Errorf("no JSON: %q", shown)
			}
		})
	}
}

// TestModelTextOnAPipe: what a model or its tokens spell goes through a pipe byte for byte.
func TestModelTextOnAPipe(t *testing.T) {
	var stdout, stderr strings.Builder
	if code := run([]string{"generate", "../../testdata/nano/base", "--prompt", "the" + evil, "--max-tokens", "1"},
		&stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d, %s", code, &stderr)
	}
	if !strings.HasPrefix(stdout.String(), "the"+evil) {
		t.Errorf("%q", stdout.String())
	}
}
