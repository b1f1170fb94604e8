package edit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/safefile"
)

// maxFile bounds a file of edits.
const maxFile = 1 << 30

// Question is a prompt and what a model should say after it.
type Question struct {
	Prompt string `json:"prompt"`
	Answer string `json:"answer"`
}

// Record is one edit and the prompts that judge it.
type Record struct {
	ID       string     `json:"case_id"`
	Prompt   string     `json:"prompt"` // with {} for the subject
	Subject  string     `json:"subject"`
	New      string     `json:"target_new"`
	True     string     `json:"target_true"` // what the model should say before; empty: unknown
	Relation string     `json:"relation_id,omitempty"`
	Rephrase []string   `json:"paraphrase_prompts,omitempty"`
	Trained  []string   `json:"paraphrase_prompts_trained,omitempty"` // more of them
	Near     []string   `json:"neighborhood_prompts,omitempty"`       // other subjects with the same true answer
	Far      []Question `json:"locality,omitempty"`                   // whatever else must stay
	Ported   []Question `json:"portability,omitempty"`                // what follows from the edit
	Same     []string   `json:"attribute_prompts,omitempty"`          // other subjects of which the new answer is true
	Generate []string   `json:"generation_prompts,omitempty"`
}

// Full is the prompt with the subject in it.
func (r *Record) Full() string { return strings.Replace(r.Prompt, "{}", r.Subject, 1) }

// Remark is something about a record that is not an error.
type Remark struct {
	Index int    `json:"index"` // of the record, from 0
	What  string `json:"what"`
	Other int    `json:"-"` // the record that it is compared with; itself if there is none
	// it asks for another answer than Other does
	Contradicts bool `json:"-"`
}

// Set is a file of edits.
type Set struct {
	File    string   `json:"-"`      // that the edits were read from; "": none
	Format  string   `json:"format"` // counterfact, zsre or easyedit
	Records []Record `json:"-"`
	Remarks []Remark `json:"remarks,omitempty"` // duplicates, contradictions, targets that are the present answer
	Skipped []Remark `json:"skipped,omitempty"` // records that were left out, by their place in the file, and why
}

// ReadOptions say which records of a file are wanted.
type ReadOptions struct {
	Count int  // the first ones, of which alone faults are looked for; 0: all
	Skip  bool // leave out records with faults, and count the next in their place
	// NoSubject takes records without a subject as being about their whole prompt, for methods that do not look for one
	// ([NeedsSubject])
	NoSubject bool
}

// Read opens a file of edits: a JSON array of records in CounterFact's form (requested_rewrite), zsRE's (src,
// alt) or EasyEdit's (prompt, target_new). All faults of all records are returned at once, each named by the
// record's index and the field's path.
func Read(path string) (*Set, error) { return ReadSome(path, ReadOptions{}) }

// ReadSome is [Read] of some records only. Those that are skipped are named by [Set].
func ReadSome(path string, o ReadOptions) (*Set, error) {
	data, err := safefile.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	s, err := parse(data, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	s.File = path
	return s, nil
}

// Parse reads the text of a file of edits; see [Read].
func Parse(data []byte) (*Set, error) { return parse(data, ReadOptions{}) }

// recordForm is one form of a file of edits.
type recordForm struct {
	name string
	mark string // the field by which the form is known
	read func(*fields) Record
}

func recordForms() []recordForm {
	return []recordForm{
		{"counterfact", "requested_rewrite", counterFact},
		{"zsre", "src", zsre},
		{"easyedit", "target_new", easyEdit},
	}
}

func parse(data []byte, o ReadOptions) (*Set, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrFormat, maxFile)
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%w: not UTF-8", ErrFormat)
	}

	data = bytes.TrimPrefix(data, []byte("\ufeff")) // some editors put it before the text
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%w: nothing in it", ErrFormat)
	}

	d := json.NewDecoder(bytes.NewReader(data))
	var raw []map[string]json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%w: not a JSON array of records: %w", ErrFormat, err)
	}

	// A second array, or a cut and pasted rest, would otherwise be ignored silently.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something after the array, at byte %d", ErrFormat, d.InputOffset())
	}
	if len(raw) == 0 {
		return nil, fmt.Errorf("%w: no records", ErrFormat)
	}

	s := &Set{}
	var form recordForm
	// The first record decides for the file: a set has one form, and mixed ones are a fault of their record.
	for _, f := range recordForms() {
		if _, ok := raw[0][f.mark]; ok && form.read == nil {
			s.Format, form = f.name, f
		}
	}

	if form.read == nil {
		return nil, fmt.Errorf("%w: record 0 has none of requested_rewrite (CounterFact), src (zsRE), "+
			"target_new (EasyEdit)", ErrFormat)
	}

	var errs []error
	for i, m := range raw {
		if o.Count > 0 && len(s.Records) == o.Count {
			break
		}

		f := &fields{at: fmt.Sprintf("record %d", i), m: m, noSubject: o.NoSubject}
		r := form.read(f)
		if r.ID == "" {
			r.ID = fmt.Sprint(i)
		}
		if f.err == nil {
			f.err = r.check(f.at)
		}
		if f.err != nil && o.Skip {
			what := strings.TrimPrefix(f.err.Error(), ErrRecord.Error()+": ")
			s.Skipped = append(s.Skipped, Remark{Index: i, What: what, Other: i})
			continue
		}

		if errs = append(errs, f.err); len(errs) >= 1<<20 {
			break
		}

		s.Records = append(s.Records, r)
	}

	if err := joinFaults(errs); err != nil {
		return nil, err
	}
	if len(s.Records) == 0 {
		return nil, fmt.Errorf("%w: every one of %d is faulty, the first: %s", ErrRecord, len(raw),
			s.Skipped[0].What)
	}

	s.remark()
	return s, nil
}

// joinFaults makes one line of the first faults.
func joinFaults(errs []error) error {
	const shown = 8
	var first []error
	n := 0
	for _, err := range errs {
		if err == nil {
			continue
		}

		n++
		if n <= shown {
			first = append(first, err)
		}
	}

	switch {
	case n == 0:
		return nil
	case n == 1:
		return first[0]
	}

	text := make([]string, len(first))
	for i, err := range first {
		text[i] = strings.TrimPrefix(err.Error(), ErrRecord.Error()+": ")
	}
	if n > shown {
		text = append(text, fmt.Sprintf("and %d more", n-shown))
	}

	return fmt.Errorf("%w: %s", ErrRecord, strings.Join(text, "; "))
}

// check refuses what no method can use.
func (r *Record) check(at string) error {
	switch {
	case strings.TrimSpace(r.Subject) == "" || strings.TrimSpace(r.Prompt) == "" || strings.TrimSpace(r.New) == "":
		return fmt.Errorf("%w: %s: prompt, subject and target_new must not be empty", ErrRecord, at)
	case strings.Count(r.Prompt, "{}") != 1:
		return fmt.Errorf("%w: %s: prompt %.100q: not exactly one {} for the subject", ErrRecord, at, r.Prompt)
	}
	return nil
}

// remark notes duplicates, contradictions and edits that change nothing.
func (s *Set) remark() {
	first := map[string]int{}
	for i := range s.Records {
		r := &s.Records[i]
		if r.True != "" && strings.TrimSpace(r.True) == strings.TrimSpace(r.New) {
			what := fmt.Sprintf("the new answer %.60q is the present one", r.New)
			s.Remarks = append(s.Remarks, Remark{Index: i, What: what, Other: i})
		}

		key := r.Full()
		k, ok := first[key]
		switch {
		case !ok:
			first[key] = i
		case strings.TrimSpace(s.Records[k].New) == strings.TrimSpace(r.New):
			what := fmt.Sprintf("the same edit as record %d", k)
			s.Remarks = append(s.Remarks, Remark{Index: i, What: what, Other: k})
		default:
			what := fmt.Sprintf("contradicts record %d: %.60q, there %.60q", k, r.New, s.Records[k].New)
			s.Remarks = append(s.Remarks, Remark{Index: i, What: what, Other: k, Contradicts: true})
		}
	}
}

// overruled are the places in a batch of records whose prompt a later one of them answers otherwise, and of that one.
// Written at once, both would miss their answers.
func overruled(batch []Record) map[int]int {
	last := map[string]int{}
	for i := range batch {
		last[batch[i].Full()] = i
	}

	out := map[int]int{}
	for i := range batch {
		if k := last[batch[i].Full()]; strings.TrimSpace(batch[k].New) != strings.TrimSpace(batch[i].New) {
			out[i] = k
		}
	}
	return out
}

// fields reads the fields of a record and keeps the first fault.
type fields struct {
	at        string
	m         map[string]json.RawMessage
	err       error
	noSubject bool // it may be missing
}

func (f *fields) fail(name, what string) {
	if f.err == nil {
		f.err = fmt.Errorf("%w: %s: %s: %s", ErrRecord, f.at, name, what)
	}
}

// read decodes a field; what says what it has to be.
func (f *fields) read(name string, to any, need bool, what string) bool {
	raw, ok := f.m[name]
	if !ok || string(raw) == "null" {
		if need {
			f.fail(name, "missing")
		}
		return false
	}

	if json.Unmarshal(raw, to) != nil {
		f.fail(name, "not "+what)
		return false
	}

	return true
}

func (f *fields) text(name string, need bool) string {
	var s string
	if f.read(name, &s, need, "a string") && need && s == "" {
		f.fail(name, "empty")
	}
	return s
}

// texts is a list of strings, or one string.
func (f *fields) texts(name string) []string {
	var one string
	if raw, ok := f.m[name]; ok && json.Unmarshal(raw, &one) == nil && string(raw) != "null" {
		if one == "" {
			return nil
		}
		return []string{one}
	}

	var list []string
	f.read(name, &list, false, "a list of strings")
	return list
}

// id is a number or a string.
func (f *fields) id(name string) string {
	return strings.Trim(string(f.m[name]), `"`)
}

// inside enters an object.
func (f *fields) inside(name string, need bool) *fields {
	g := &fields{at: f.at + ": " + name, noSubject: f.noSubject}
	if !f.read(name, &g.m, need, "an object") {
		g.m = nil
	}
	return g
}

// merge takes over the fault of an inner object.
func (f *fields) merge(g *fields) {
	if f.err == nil {
		f.err = g.err
	}
}

// about reads the subject and the prompt, in which {} takes the subject's place.
func (f *fields) about(r *Record, prompt string) {
	r.Subject = f.text("subject", !f.noSubject)
	r.Prompt = f.text(prompt, true)
	if f.noSubject && r.Subject == "" && !strings.Contains(r.Prompt, "{}") {
		r.Subject, r.Prompt = strings.TrimRight(r.Prompt, " "), "{}"
		return
	}
	r.Prompt = f.slot(r.Prompt, r.Subject)
}

// slot replaces the subject in a filled prompt, at its last place, by {}.
func (f *fields) slot(prompt, subject string) string {
	if f.err != nil || strings.Contains(prompt, "{}") {
		return prompt
	}
	i := strings.LastIndex(prompt, subject)
	if i < 0 || subject == "" {
		f.err = fmt.Errorf("%w: %s: %w: %.100q, subject %.60q", ErrRecord, f.at, ErrSubject, prompt, subject)
		return prompt
	}
	return prompt[:i] + "{}" + prompt[i+len(subject):]
}

// counterFact is ROME's form.
func counterFact(f *fields) Record {
	q := f.inside("requested_rewrite", true)
	r := Record{ID: f.id("case_id")}
	if q.m != nil {
		q.about(&r, "prompt")
		r.Relation = q.text("relation_id", false)
		fresh, old := q.inside("target_new", true), q.inside("target_true", false)
		if fresh.m != nil {
			r.New = fresh.text("str", true)
		}
		if old.m != nil {
			r.True = old.text("str", false)
		}

		q.merge(fresh)
		q.merge(old)
	}

	f.merge(q)
	r.Rephrase = f.texts("paraphrase_prompts")
	r.Trained = f.texts("paraphrase_prompts_trained")
	r.Near = f.texts("neighborhood_prompts")
	r.Same, r.Generate = f.texts("attribute_prompts"), f.texts("generation_prompts")

	return r
}

// zsre is MEND's form; the new answer is alt, as MEND and EasyEdit take it.
func zsre(f *fields) Record {
	r := Record{ID: f.id("case_id"), New: f.text("alt", true)}
	f.about(&r, "src")

	if a := f.texts("answers"); len(a) > 0 {
		r.True = a[0]
	} else {
		r.True = f.text("pred", false)
	}

	r.Rephrase = f.texts("rephrase")
	if loc := f.text("loc", false); loc != "" {
		r.Far = []Question{{strings.TrimPrefix(loc, "nq question: ") + "?", f.text("loc_ans", true)}}
	}

	return r
}

// easyEdit is EasyEdit's form.
func easyEdit(f *fields) Record {
	r := Record{ID: f.id("case_id"), New: f.text("target_new", true), True: f.text("ground_truth", false)}
	f.about(&r, "prompt")
	r.Rephrase = append(f.texts("rephrase_prompt"), f.texts("rephrase")...)

	prompts, answers := f.texts("locality_prompt"), f.texts("locality_ground_truth")
	if len(prompts) != len(answers) {
		f.fail("locality_ground_truth", fmt.Sprintf("%d answers for %d prompts", len(answers), len(prompts)))
		return r
	}

	for i, p := range prompts {
		// EasyEdit has one field for both kinds: the same true answer for another subject is CounterFact's
		// neighborhood.
		if answers[i] == r.True {
			r.Near = append(r.Near, p)
		} else {
			r.Far = append(r.Far, Question{p, answers[i]})
		}
	}

	r.Far = append(r.Far, f.questions("locality")...)
	r.Ported = f.questions("portability")
	return r
}

// questions are the lists of prompts and answers that an object holds by kind, in the order of the kinds' names.
func (f *fields) questions(name string) []Question {
	g := f.inside(name, false)
	var out []Question
	for _, kind := range site.Sorted(g.m) {
		k := g.inside(kind, false)
		if k.m == nil {
			continue
		}

		prompts, answers := k.texts("prompt"), k.texts("ground_truth")
		if len(prompts) != len(answers) {
			k.fail("ground_truth", fmt.Sprintf("%d answers for %d prompts", len(answers), len(prompts)))
		}
		for i := range min(len(prompts), len(answers)) {
			out = append(out, Question{prompts[i], answers[i]})
		}

		g.merge(k)
	}

	f.merge(g)
	return out
}
