package task

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// oracle is the folder of reference runs.
func oracle(t *testing.T) string {
	dir := os.Getenv("COMPRESS_ORACLE")
	if dir == "" {
		dir = "../../../shared/oracle"
	}
	if _, err := os.Stat(filepath.Join(dir, "eval")); err != nil {
		t.Skipf("%s is not there", filepath.Join(dir, "eval"))
	}
	return dir
}

// reference is a results.json of a reference run.
type reference struct {
	Model      string                     `json:"model"`
	Task       string                     `json:"task"`
	Shots      int                        `json:"num_fewshot"`
	Limit      *int                       `json:"limit"`
	AddBOS     *bool                      `json:"add_bos_token"`
	MaxLength  int                        `json:"max_length"`
	Prefix     int32                      `json:"prefix_token_id"`
	Iterations int                        `json:"bootstrap_iters"`
	Results    map[string]map[string]any  `json:"results"`
	Groups     map[string]map[string]any  `json:"groups"`
	NSamples   map[string]Count           `json:"n_samples"`
	Better     map[string]map[string]bool `json:"higher_is_better"`
	NShot      map[string]int             `json:"n_shot"`
}

// Every reference run: prompts, tokens, likelihoods, flags, texts, filters, metrics and standard errors.
func TestOracleRuns(t *testing.T) {
	dir := oracle(t)
	files, err := filepath.Glob(filepath.Join(dir, "eval", "*", "*.results.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no results under %s: %v", dir, err)
	}

	models := map[string]*opened{}
	for _, file := range files {
		var ref reference
		readJSON(t, file, &ref)
		name := filepath.Base(filepath.Dir(file)) + "/" + strings.TrimSuffix(filepath.Base(file), ".results.json")
		t.Run(name, func(t *testing.T) {
			if models[ref.Model] == nil {
				models[ref.Model] = openModel(t, dir, ref.Model)
			}
			compareRun(t, dir, file, models[ref.Model], &ref)
		})
	}
}

// opened is a model and its tokenizer.
type opened struct {
	m   *lm.Model
	tok *tokenizer.Tokenizer
}

func openModel(t *testing.T, dir, name string) *opened {
	t.Helper()

	for _, p := range []string{
		filepath.Join(dir, "models", name), filepath.Join(dir, "..", "data", "models", name),
		filepath.Join(dir, "..", "data", name, "base"),
	} {
		if _, err := os.Stat(filepath.Join(p, "tokenizer.json")); err != nil {
			continue
		}

		m, err := lm.Load(context.Background(), p, cpu.New(cpu.Options{}), lm.Options{})
		if err != nil {
			t.Fatal(err)
		}

		tok, err := tokenizer.Load(p)
		if err != nil {
			t.Fatal(err)
		}

		return &opened{m, tok}
	}

	t.Skipf("model %s is not beside %s", name, dir)
	return nil
}

func readJSON(t *testing.T, file string, to any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// row is a sample of ours.
type row struct {
	DocID     int                          `json:"doc_id"`
	Target    string                       `json:"target"`
	Arguments map[string]map[string]string `json:"-"`
	RawArgs   map[string]json.RawMessage   `json:"arguments"`
	Resps     [][]any                      `json:"resps"`
	Filtered  []any                        `json:"filtered_resps"`
	Filter    string                       `json:"filter"`
	Tokens    []map[string]int             `json:"tokens"`
	Examples  []int                        `json:"examples"`
	fields    map[string]any
}

func (r *row) arg(t *testing.T, i, k int) string {
	t.Helper()
	var args map[string]any
	if err := json.Unmarshal(r.RawArgs[fmt.Sprintf("gen_args_%d", i)], &args); err != nil {
		t.Fatal(err)
	}
	s, _ := args[fmt.Sprintf("arg_%d", k)].(string)
	return s
}

// sampleOf is a sample of a reference run.
type sampleOf struct {
	DocID    int             `json:"doc_id"`
	Target   any             `json:"target"`
	Context  *string         `json:"ctx"`
	Examples []int           `json:"fewshot_idx"`
	Metrics  map[string]any  `json:"metrics"`
	Requests []wantedRequest `json:"requests"`

	TextSHA string   `json:"text_sha256"`
	NTokens int      `json:"n_tokens"`
	IDsSHA  string   `json:"ids_sha"`
	Windows [][2]int `json:"windows"`
	LL      float64  `json:"ll"`

	Generated *string `json:"generated"`
	NContext  int     `json:"n_ctx"`
	NInput    int     `json:"n_input"`
	InputSHA  string  `json:"input_sha"`
	Filters   map[string]struct {
		Filtered   []any   `json:"filtered"`
		ExactMatch float64 `json:"exact_match"`
	} `json:"filters"`
}

type wantedRequest struct {
	Cont     string  `json:"cont"`
	NContext int     `json:"n_ctx"`
	NCont    int     `json:"n_cont"`
	NInput   int     `json:"n_input"`
	ContIDs  []int32 `json:"cont_ids"`
	InputSHA string  `json:"input_sha"`
	LL       float64 `json:"ll"`
	Greedy   bool    `json:"greedy"`
	Context  *string `json:"ctx"`
}

func compareRun(t *testing.T, dir, file string, model *opened, ref *reference) {
	s, err := Load([]string{filepath.Join(dir, "eval", "tasks")}, filepath.Join(dir, "..", ".."))
	if err != nil {
		t.Fatal(err)
	}

	s.chosen = []string{ref.Task}
	s.tasks = nil
	s.groups = nil
	if err := s.expand(); err != nil {
		t.Fatal(err)
	}

	o := Options{Shots: &ref.Shots, Special: ref.AddBOS, Bootstrap: ref.Iterations}
	if ref.Limit != nil {
		o.Limit = *ref.Limit
	}

	rows := map[string][]*row{}
	o.Sample = func(task string, line []byte) error {
		r := &row{}
		if err := json.Unmarshal(line, r); err != nil {
			return err
		}
		rows[task] = append(rows[task], r)
		return json.Unmarshal(line, &r.fields)
	}

	inspect := map[string][]*document{}
	inspected = func(t *one) { inspect[t.Task.Name] = t.docs }
	defer func() { inspected = nil }()

	got, err := Run(context.Background(), model.m, model.tok, s, o)
	if err != nil {
		t.Fatal(err)
	}

	if got.MaxLength != ref.MaxLength || got.Prefix != ref.Prefix {
		t.Errorf("max length %d, prefix %d; want %d, %d", got.MaxLength, got.Prefix, ref.MaxLength, ref.Prefix)
	}

	for _, task := range s.tasks {
		path := strings.TrimSuffix(file, ".results.json") + ".samples.jsonl"
		if task != ref.Task {
			path = filepath.Join(filepath.Dir(file), task+strings.TrimPrefix(filepath.Base(path), ref.Task))
		}
		compareSamples(t, path, rows[task], inspect[task])
	}

	compareFigures(t, got, ref)
}

func compareSamples(t *testing.T, path string, rows []*row, docs []*document) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	byDoc := map[int][]*row{}
	for _, r := range rows {
		byDoc[r.DocID] = append(byDoc[r.DocID], r)
	}

	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 64<<20)

	n := 0
	for ; sc.Scan(); n++ {
		var w sampleOf
		if err := json.Unmarshal(sc.Bytes(), &w); err != nil {
			t.Fatal(err)
		}
		if len(byDoc[w.DocID]) == 0 || w.DocID >= len(docs) {
			t.Fatalf("document %d is not there", w.DocID)
		}

		compareSample(t, &w, byDoc[w.DocID], docs[w.DocID])
	}

	if n != len(docs) {
		t.Errorf("%d documents, want %d", len(docs), n)
	}
}

func compareSample(t *testing.T, w *sampleOf, rows []*row, d *document) {
	t.Helper()
	r := rows[0]
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("document %d: %s", w.DocID, fmt.Sprintf(format, args...))
	}

	if w.Examples != nil && fmt.Sprint(w.Examples) != fmt.Sprint(r.Examples) {
		fail("examples %v, want %v", r.Examples, w.Examples)
	}

	switch {
	case w.Windows != nil:
		compareRolling(fail, w, d)
	case w.Generated != nil:
		compareText(t, fail, w, rows, d)
	default:
		for i, q := range w.Requests {
			ctx := q.Context
			if ctx == nil {
				ctx = w.Context
			}
			compareRequest(t, fail, &q, *ctx, r, d, i)
		}

		for name, v := range w.Metrics {
			got, isNumber := r.fields[name].(float64)
			if x, ok := v.(float64); ok && isNumber && math.Abs(got-x) > 1e-3+1e-5*math.Abs(x) {
				fail("%s %g, want %g", name, got, x)
			}
		}
	}
}

func compareRequest(t *testing.T, fail func(string, ...any), q *wantedRequest, ctx string, r *row, d *document, i int) {
	t.Helper()
	if got := r.arg(t, i, 0); got != ctx {
		fail("request %d: context %q, want %q", i, got, ctx)
	}
	if got := r.arg(t, i, 1); got != q.Cont {
		fail("request %d: continuation %q, want %q", i, got, q.Cont)
	}

	s := d.seqs[i]
	if s.Before != q.NContext || len(s.Target) != q.NCont || len(s.IDs) != q.NInput || shaOf(s.IDs) != q.InputSHA ||
		fmt.Sprint(s.Target) != fmt.Sprint(q.ContIDs) {
		fail("request %d: %d+%d tokens, %d seen; want %d+%d, %d", i, s.Before, len(s.Target), len(s.IDs), q.NContext,
			q.NCont, q.NInput)
	}

	pair := r.Resps[i][0].([]any)
	var ll float64
	fmt.Sscan(pair[0].(string), &ll)
	if math.Abs(ll-q.LL) > 1e-3+1e-5*math.Abs(q.LL) {
		fail("request %d: likelihood %g, want %g", i, ll, q.LL)
	}
	if greedy := pair[1] == "True"; greedy != q.Greedy {
		fail("request %d: greedy %v, want %v", i, greedy, q.Greedy)
	}
}

func compareRolling(fail func(string, ...any), w *sampleOf, d *document) {
	text := sha256.Sum256([]byte(d.Requests[0].Continuation))
	if got := hex.EncodeToString(text[:]); !strings.HasPrefix(got, w.TextSHA) {
		fail("text %s, want %s", got, w.TextSHA)
	}
	if len(d.all) != w.NTokens || shaOf(d.all) != w.IDsSHA {
		fail("%d tokens %s, want %d %s", len(d.all), shaOf(d.all), w.NTokens, w.IDsSHA)
	}

	for i, s := range d.seqs {
		if i >= len(w.Windows) || len(s.IDs)-len(s.Target)+1 != w.Windows[i][0] || len(s.Target) != w.Windows[i][1] {
			fail("window %d: %d + %d, want %v", i, len(s.IDs)-len(s.Target)+1, len(s.Target), w.Windows)
		}
	}
}

func compareText(t *testing.T, fail func(string, ...any), w *sampleOf, rows []*row, d *document) {
	t.Helper()
	if got := rows[0].arg(t, 0, 0); got != *w.Context {
		fail("context %q, want %q", got, *w.Context)
	}
	if p := d.prompts[0]; d.before != w.NContext || len(p.IDs) != w.NInput || shaOf(p.IDs) != w.InputSHA {
		fail("%d tokens, %d seen; want %d, %d", d.before, len(p.IDs), w.NContext, w.NInput)
	}
	if got := rows[0].Resps[0][0]; got != *w.Generated {
		fail("generated %q, want %q", got, *w.Generated)
	}

	for _, r := range rows {
		f := w.Filters[r.Filter]
		if fmt.Sprint(r.Filtered) != fmt.Sprint(f.Filtered) || r.fields["exact_match"] != f.ExactMatch {
			fail("filter %s: %v (%v), want %v (%v)", r.Filter, r.Filtered, r.fields["exact_match"], f.Filtered,
				f.ExactMatch)
		}
	}
}

// shaOf is how reference runs write ids down.
func shaOf(ids []int32) string {
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = fmt.Sprint(id)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ",")))
	return hex.EncodeToString(sum[:])[:16]
}

// compareFigures compares aggregates and standard errors: to 1e-6, those made of likelihoods relative to 1e-3
// and 1e-2, since the likelihoods themselves agree to 1e-5 or so and a resampled figure multiplies that.
func compareFigures(t *testing.T, got *Results, ref *reference) {
	t.Helper()

	for _, part := range []struct{ got, want map[string]map[string]any }{
		{got.Results, ref.Results},
		{got.Groups, ref.Groups},
	} {
		for name, figures := range part.want {
			for key, v := range figures {
				x, isNumber := v.(float64)
				y, ok := part.got[name][key].(float64)

				tol := 1e-6
				if strings.Contains(key, "perplexity") || strings.Contains(key, "bits") ||
					strings.Contains(key, "brier") {
					tol = 1e-3 * math.Abs(x)
				}

				switch {
				case !strings.Contains(key, ","):
				case isNumber && (!ok || math.Abs(x-y) > tol):
					t.Errorf("%s %s: %v, want %v", name, key, part.got[name][key], v)
				case !isNumber && part.got[name][key] != v:
					t.Errorf("%s %s: %v, want %v", name, key, part.got[name][key], v)
				}
			}
		}
	}

	for name, n := range ref.NSamples {
		if got.NSamples[name] != n {
			t.Errorf("%s: %+v, want %+v", name, got.NSamples[name], n)
		}
	}

	for name, n := range ref.NShot {
		if got.NShot[name] != n {
			t.Errorf("%s: %d examples, want %d", name, got.NShot[name], n)
		}
	}

	for name, better := range ref.Better {
		for m, b := range better {
			if p := got.HigherIsBetter[name][m]; p == nil || *p != b {
				t.Errorf("%s %s: higher is better %v, want %v", name, m, p, b)
			}
		}
	}
}

// Bootstrapped standard errors, from the recorded likelihoods: the draws are Python's, so they agree but for
// the order of sums.
func TestOracleBootstrap(t *testing.T) {
	dir := oracle(t)
	files, err := filepath.Glob(filepath.Join(dir, "eval", "*", "*.results.json"))
	if err != nil {
		t.Fatal(err)
	}

	agg, err := metric.FindAggregation("perplexity")
	if err != nil {
		t.Fatal(err)
	}

	n := 0
	for _, file := range files {
		var ref reference
		readJSON(t, file, &ref)
		want, ok := ref.Results[ref.Task]["perplexity_stderr,none"].(float64)
		if !ok {
			continue
		}

		text, err := os.ReadFile(strings.TrimSuffix(file, ".results.json") + ".samples.jsonl")
		if err != nil {
			t.Fatal(err)
		}

		var items []metric.Item
		for line := range strings.Lines(string(text)) {
			var w sampleOf
			if err := json.Unmarshal([]byte(line), &w); err != nil {
				t.Fatal(err)
			}
			items = append(items, metric.Item{X: w.Requests[0].LL})
		}

		n++
		if got, _ := agg.Stderr(items, ref.Iterations); math.Abs(got-want) > 1e-6*want {
			t.Errorf("%s: %.12g, want %.12g", file, got, want)
		}
	}

	if n == 0 {
		t.Error("no run has a bootstrapped standard error")
	}
}
