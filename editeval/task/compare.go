package task

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
)

// The ways in which two runs cannot be compared.
var (
	ErrNoRun     = errors.New("no results of an evaluation")
	ErrNoSamples = failure.New("no samples", "run eval with --log-samples")
	ErrDiffer    = errors.New("not the same documents")
)

// Comparison is two runs side by side.
type Comparison struct {
	A    string `json:"a"`
	B    string `json:"b"`
	Rows []Pair `json:"rows"`
	// OnlyA and OnlyB are tasks that one of the runs lacks.
	OnlyA []string `json:"only_a,omitempty"`
	OnlyB []string `json:"only_b,omitempty"`
	// Remarks say where the runs asked for the same documents in different ways.
	Remarks []string `json:"remarks,omitempty"`
}

// Pair compares a metric of a task between two runs, on the documents that both have.
type Pair struct {
	Task           string `json:"task"`
	Filter         string `json:"filter"`
	Metric         string `json:"metric"`
	HigherIsBetter bool   `json:"higher_is_better"`
	metric.Paired
	Unpaired int `json:"unpaired"` // documents that one of the runs lacks
}

// CompareOptions of [Compare].
type CompareOptions struct {
	Draws int    // resamples, at most 10,000,000; 0: 10000
	Seed  uint64 // of the resamples
}

// Compare tests the differences between two runs, each a folder with results.json and samples: McNemar's exact
// test for documents that are right or wrong, a paired bootstrap for all else and for the intervals. Documents
// are paired by their place in the data, and must be the same.
func Compare(a, b string, o CompareOptions) (*Comparison, error) {
	if o.Draws < 0 || o.Draws > maxDraws {
		return nil, fmt.Errorf("%w: %d resamples: want 1 to %d, or 0 for 10000", ErrOptions, o.Draws, maxDraws)
	}
	if o.Draws == 0 {
		o.Draws = 10_000
	}

	runA, err := readRun(a)
	if err != nil {
		return nil, err
	}

	runB, err := readRun(b)
	if err != nil {
		return nil, err
	}

	c := &Comparison{A: a, B: b}
	for _, task := range runA.tasks {
		if !slices.Contains(runB.tasks, task) {
			c.OnlyA = append(c.OnlyA, task)
			continue
		}

		rows, err := compareTask(task, runA, runB, o)
		if err != nil {
			return nil, err
		}

		c.Rows = append(c.Rows, rows...)

		// A remark, no fault: the number of examples may be what is compared.
		if x, y := runA.res.Shots[task], runB.res.Shots[task]; x != y {
			c.Remarks = append(c.Remarks,
				fmt.Sprintf("%s: the prompts of A have %d examples, those of B %d", task, x, y))
		} else if x > 0 && runA.res.Setup.Seed != runB.res.Setup.Seed {
			c.Remarks = append(c.Remarks, fmt.Sprintf("%s: the examples were chosen with different seeds", task))
		}
	}

	c.Remarks = append(c.Remarks, differences(runA, runB)...)

	for _, task := range runB.tasks {
		if !slices.Contains(runA.tasks, task) {
			c.OnlyB = append(c.OnlyB, task)
		}
	}

	if len(c.Rows) == 0 {
		return nil, fmt.Errorf("%s and %s: %w: no task is in both", a, b, ErrDiffer)
	}

	return c, nil
}

// finished is a run as its folder has it.
type finished struct {
	dir   string
	tasks []string
	res   struct {
		Configs map[string]struct {
			Metrics []struct {
				Name        string `json:"metric"`
				Aggregation string `json:"aggregation"`
			} `json:"metric_list"`
		} `json:"configs"`
		Better map[string]map[string]*bool `json:"higher_is_better"`
		Shots  map[string]int              `json:"n-shot"`
		System *string                     `json:"system_instruction"`
		Chat   *string                     `json:"chat_template_sha"`
		Turns  bool                        `json:"fewshot_as_multiturn"`
		Length int                         `json:"max_length"`
		Setup  struct {
			Seed    uint64 `json:"fewshot_seed"`
			Special *bool  `json:"special"`
		} `json:"config"`
	}
}

// differences lists what two runs did not have in common.
func differences(a, b *finished) []string {
	var out []string
	add := func(same bool, what string) {
		if !same {
			out = append(out, what+" of A and B differ")
		}
	}

	add(equal(a.res.System, b.res.System), "the instructions of the system")
	add(equal(a.res.Chat, b.res.Chat) && a.res.Turns == b.res.Turns,
		"the chat templates, or how examples are written in them,")
	add(a.res.Length == b.res.Length, "the greatest lengths of a sequence")
	add(equal(a.res.Setup.Special, b.res.Setup.Special), "the special tokens before prompts")

	return out
}

func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

const maxResults = 256 << 20

func readRun(dir string) (*finished, error) {
	f := &finished{dir: dir}
	text, err := safefile.ReadFile(filepath.Join(dir, "results.json"), maxResults)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: there is no results.json", dir, ErrNoRun)
	}

	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &f.res); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", filepath.Join(dir, "results.json"), ErrNoRun, err)
	}
	for name := range f.res.Configs {
		f.tasks = append(f.tasks, name)
	}

	slices.Sort(f.tasks)
	if len(f.tasks) == 0 {
		return nil, fmt.Errorf("%s: %w: it has no tasks", filepath.Join(dir, "results.json"), ErrNoRun)
	}

	return f, nil
}

// column is the contributions of documents to a metric.
type column struct{ filter, metric string }

// samples are those of a task: by document its hash, by column and document what it contributes.
type samples struct {
	hash  map[int]string
	items map[column]map[int]metric.Item
}

// samples reads the samples of a task.
func (f *finished) samples(task string) (*samples, error) {
	path := filepath.Join(f.dir, "samples_"+task+".jsonl")
	file, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", path, ErrNoSamples)
	}

	if err != nil {
		return nil, err
	}
	defer file.Close()

	s := &samples{map[int]string{}, map[column]map[int]metric.Item{}}
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, maxResults)

	for n := 1; sc.Scan(); n++ {
		if err := s.line(sc.Bytes()); err != nil {
			return nil, fmt.Errorf("%s:%d: %w: %w", path, n, ErrNoSamples, err)
		}
	}

	return s, sc.Err()
}

func (s *samples) line(text []byte) error {
	var row map[string]json.RawMessage
	var id int
	var doc, target, filter string
	var metrics []string
	if err := json.Unmarshal(text, &row); err != nil {
		return err
	}

	for _, f := range []struct {
		key string
		to  any
	}{
		{"doc_id", &id}, {"doc_hash", &doc}, {"target_hash", &target}, {"filter", &filter}, {"metrics", &metrics},
	} {
		if err := json.Unmarshal(row[f.key], f.to); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}

	// Both: data can have been edited in its answers only.
	s.hash[id] = doc + target

	for _, m := range metrics {
		x, err := itemOf(row[m])
		if err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}

		c := column{filter, m}
		if s.items[c] == nil {
			s.items[c] = map[int]metric.Item{}
		}

		s.items[c][id] = x
	}

	return nil
}

// itemOf reads what [figure] has written.
func itemOf(text json.RawMessage) (metric.Item, error) {
	var x float64
	if json.Unmarshal(text, &x) == nil {
		return metric.Item{X: x}, nil
	}

	var pair [2]float64
	if json.Unmarshal(text, &pair) == nil {
		return metric.Item{X: pair[0], N: pair[1], Gold: int(pair[0]), Pred: int(pair[1])}, nil
	}

	var probs [2]json.RawMessage
	var item metric.Item
	err := json.Unmarshal(text, &probs)
	if err == nil {
		err = errors.Join(json.Unmarshal(probs[0], &item.Gold), json.Unmarshal(probs[1], &item.Probs))
	}

	return item, err
}

func compareTask(task string, a, b *finished, o CompareOptions) ([]Pair, error) {
	inA, err := a.samples(task)
	if err != nil {
		return nil, err
	}

	inB, err := b.samples(task)
	if err != nil {
		return nil, err
	}

	ids := make([]int, 0, len(inA.hash))
	for id, h := range inA.hash {
		other, ok := inB.hash[id]
		if ok && other != h {
			return nil, fmt.Errorf("%s and %s: %w: document %d of task %s differs", a.dir, b.dir, ErrDiffer, id, task)
		}

		if ok {
			ids = append(ids, id)
		}
	}

	if len(ids) == 0 {
		return nil, fmt.Errorf("%s and %s: %w: task %s has no document in both", a.dir, b.dir, ErrDiffer, task)
	}

	slices.Sort(ids)
	var rows []Pair
	for c, items := range inA.items {
		others, ok := inB.items[c]
		agg, err := a.aggregation(task, c.metric)
		if !ok || err != nil {
			continue // a metric that only one run has, or of a newer version
		}

		p := Pair{
			Task: task, Filter: c.filter, Metric: c.metric, HigherIsBetter: true,
			Unpaired: len(inA.hash) + len(inB.hash) - 2*len(ids),
		}
		if better := a.res.Better[task][c.metric]; better != nil {
			p.HigherIsBetter = *better
		}

		x, y := make([]metric.Item, len(ids)), make([]metric.Item, len(ids))
		for i, id := range ids {
			x[i], y[i] = items[id], others[id]
		}

		p.Paired = metric.Compare(agg, x, y, o.Draws, o.Seed)
		rows = append(rows, p)
	}

	slices.SortFunc(rows, func(a, b Pair) int { return strings.Compare(a.Metric+a.Filter, b.Metric+b.Filter) })
	return rows, nil
}

// aggregation is that of a metric in a task of the run.
func (f *finished) aggregation(task, name string) (metric.Aggregation, error) {
	known, err := metric.Find(name)
	if err != nil {
		return metric.Aggregation{}, err
	}

	for _, m := range f.res.Configs[task].Metrics {
		if m.Name == name && m.Aggregation != "" {
			return metric.FindAggregation(m.Aggregation)
		}
	}

	return metric.FindAggregation(known.Aggregation)
}
