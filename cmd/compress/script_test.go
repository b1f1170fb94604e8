package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/weights/weightstest"
)

// TestMain is also where the program under test begins, in a process of its own. What it and the tests hold is small,
// so that collections after every 4 MB would be a tenth of all their time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	testscript.Main(m, map[string]func(){"compress": tested, "soaked": inProcess})
}

// patience names the environment variable that makes the program under test wait less long for a worker that is silent.
const patience = "COMPRESS_TEST_PATIENCE"

// tested is the program as tests run it.
func tested() {
	if d, err := time.ParseDuration(os.Getenv(patience)); err == nil {
		workers.Patience = d
	}
	main()
}

// TestScripts runs the command lines of testdata/script. NANO is the folder of the shipped models; GPTQ and GGUF are
// quantised copies of one of them; ARROW has data sets that the datasets library saved.
func TestScripts(t *testing.T) {
	gptq, _ := weightstest.Quantise(t, "../../testdata/nano/base", "gptq")
	file, _ := weightstest.GGUF(t, "../../testdata/nano/base")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			nano, err := filepath.Abs("../../testdata/nano")
			e.Setenv("NANO", nano)
			e.Setenv("ARROW", filepath.Join(filepath.Dir(filepath.Dir(nano)), "internal", "arrow", "testdata"))
			e.Setenv("GPTQ", gptq)
			e.Setenv("GGUF", file)
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": exitCode, "json": jsonValue, "copydir": copyDir, "hostile": hostile, "edit": edit, "same": same,
			"tensors": tensors, "near": near, "samevalue": sameValue, "deep": deep, "page": asPage,
			"schema": fitsSchema, "head": head,
		},
	})
}

// exitCode runs a command that must end with a code: code N CMD ARGS…
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)

	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}

	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
	if text := ts.ReadFile("stderr"); want != 0 && strings.Count(text, "\n") != 1 {
		ts.Fatalf("an error must be one line, got %q", text)
	}
}

// lookup finds a value in a JSON file or in stdout: keys and positions joined by dots.
func lookup(ts *testscript.TestScript, file, path string) any {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &v))
	if path == "." {
		return v
	}

	for key := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			inner, ok := x[key]
			if !ok {
				ts.Fatalf("%s: no key %q of %q", file, key, path)
			}
			v = inner
		case []any:
			i, err := strconv.Atoi(key)
			ts.Check(err)
			v = x[i]
		default:
			ts.Fatalf("%s: nothing below %q", file, key)
		}
	}

	return v
}

// jsonValue compares a value with JSON text, or only finds it: json FILE PATH [TEXT]
func jsonValue(ts *testscript.TestScript, neg bool, args []string) {
	got := lookup(ts, args[0], args[1])
	if len(args) < 3 {
		return
	}
	var want any
	ts.Check(json.Unmarshal([]byte(args[2]), &want))
	if reflect.DeepEqual(got, want) == neg {
		ts.Fatalf("%s: %v, compared with %s", args[1], got, args[2])
	}
}

// sameValue compares the values of two JSON files, numbers perhaps to a tolerance:
// samevalue FILE PATH FILE PATH [TOLERANCE]
func sameValue(ts *testscript.TestScript, neg bool, args []string) {
	a, b := lookup(ts, args[0], args[1]), lookup(ts, args[2], args[3])
	if len(args) > 4 {
		near(ts, neg, []string{args[0], args[1], fmt.Sprint(b), args[4]})
		return
	}
	if reflect.DeepEqual(a, b) == neg {
		ts.Fatalf("%s is %v, %s is %v", args[1], a, args[3], b)
	}
}

// deep writes a tree of JSON that is nested ten thousand deep: deep FILE
func deep(ts *testscript.TestScript, _ bool, args []string) {
	const n = 10_000
	text := strings.Repeat(`{"data": "neg", "left": `, n) + `{"data": "W"}` + strings.Repeat(`, "right": null}`, n)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o666))
}

// near compares a number: near FILE PATH VALUE TOLERANCE
func near(ts *testscript.TestScript, _ bool, args []string) {
	got, _ := lookup(ts, args[0], args[1]).(float64)
	want, err := strconv.ParseFloat(args[2], 64)
	ts.Check(err)
	tolerance, err := strconv.ParseFloat(args[3], 64)
	ts.Check(err)
	if !(math.Abs(got-want) <= tolerance) {
		ts.Fatalf("%s is %v, want %v within %v", args[1], got, want, tolerance)
	}
}

// head copies the first lines of a file, about so many bytes: head BYTES FROM TO. A perplexity takes as long as its
// text.
func head(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	text := ts.ReadFile(args[1])[:n]
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(text[:strings.LastIndexByte(text, '\n')+1]), 0o666))
}

// copyDir copies a folder: copydir FROM TO
func copyDir(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.CopyFS(ts.MkAbs(args[1]), os.DirFS(ts.MkAbs(args[0]))))
}

// edit replaces text in a file: edit FILE OLD NEW
func edit(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, args[1], args[2])), 0o666))
}

// same compares two folders byte by byte, names included: same A B
func same(ts *testscript.TestScript, neg bool, args []string) {
	if diff := differences(ts.MkAbs(args[0]), ts.MkAbs(args[1])); (diff == "") == neg {
		ts.Fatalf("%s and %s: %s", args[0], args[1], diff)
	}
}

// differences says how two folders differ, "" if they don't.
func differences(a, b string) string {
	x, errX := contents(a)
	y, errY := contents(b)
	if err := errors.Join(errX, errY); err != nil {
		return err.Error()
	}

	for name, data := range x {
		if other, ok := y[name]; !ok || other != data {
			return fmt.Sprintf("%s differs or is missing", name)
		}
	}

	if len(x) != len(y) {
		return "one has more files"
	}

	return ""
}

func contents(dir string) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(data)
		return err
	})

	return all, err
}
