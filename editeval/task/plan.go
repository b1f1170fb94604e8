package task

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// ErrPlan: a plan that cannot be run.
var ErrPlan = failure.Misuse("unusable plan", "")

// Plan lists models and the tasks that each is evaluated on.
type Plan struct {
	Models     []PlanModel `yaml:"models"`          // the others are compared with the first
	Tasks      []string    `yaml:"tasks"`           // as for [Load]; no patterns
	Data       []string    `yaml:"data"`            // folders in which the tasks' data files are looked for
	NumFewshot *int        `yaml:"num_fewshot"`     // nil or -1: as the tasks say
	Limit      int         `yaml:"limit"`           // see [Options], as for the following
	Bootstrap  int         `yaml:"bootstrap_iters"` //
	MaxLength  int         `yaml:"max_length"`      //

	Chat      any    `yaml:"apply_chat_template"`  // true, [OwnChat], or the name of a template; nil, false: plain text
	Multiturn *bool  `yaml:"fewshot_as_multiturn"` // nil: where there is a chat template
	System    string `yaml:"system_instruction"`
}

// PlanModel is a model of a plan.
type PlanModel struct {
	Name    string `yaml:"name" json:"name"` // "": the name of its folder
	Path    string `yaml:"path" json:"path"`
	Adapter string `yaml:"adapter" json:"adapter,omitempty"` // folder of an adapter that acts on it; "": none
}

// maxPlan bounds the file of a plan.
const maxPlan = 1 << 20

// ReadPlan reads a plan, a YAML file, for [OpenBatch]. Its paths become absolute, so that it means the same in every
// folder. The error wraps [ErrPlan], or is one of the file.
func ReadPlan(file string) (*Plan, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxPlan {
		return nil, fmt.Errorf("%s: %w: %d bytes", file, ErrPlan, st.Size())
	}

	text, err := safefile.ReadFile(file, maxPlan)
	if err != nil {
		return nil, err
	}

	p, err := ParsePlan(file, text)
	if err != nil {
		return nil, err
	}

	return p, p.settle()
}

// ParsePlan reads the text of a plan; its paths stay as they are. file is named in errors.
func ParsePlan(file string, text []byte) (*Plan, error) {
	p := &Plan{}
	src, err := strictyaml.Parse(file, text)
	if err == nil {
		r := src.NewReader()
		if n := r.Only(src, "a plan"); n != nil {
			spellOut(n.Get("models"))
			r.Decode(n, "a plan", p)
		}
		err = r.Err()
	}
	if err != nil {
		return nil, strictyaml.OneLine(ErrPlan, err)
	}

	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}

	return p, nil
}

// spellOut makes mappings of the models that are given by their path alone.
func spellOut(models *strictyaml.Node) {
	if models == nil {
		return
	}

	for i, n := range models.Items {
		if n.Kind == strictyaml.Scalar {
			path := strictyaml.Entry{Place: n.Place, Key: "path", Value: n}
			models.Items[i] = &strictyaml.Node{Place: n.Place, Kind: strictyaml.Map, Entries: []strictyaml.Entry{path}}
		}
	}
}

// plainName is what the name of a model may be: it becomes that of a folder.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// reserved are names in the folder of a batch that are no models: its files, and where a program may keep a queue.
var reserved = []string{comparisonFile, "comparison.md", contractFile, "queue"}

// Validate gives models that have no name that of their folder, and returns the first fault of the plan.
func (p *Plan) Validate() error {
	if len(p.Models) == 0 || len(p.Tasks) == 0 {
		return fmt.Errorf("%w: it needs models and tasks", ErrPlan)
	}

	models := map[string]bool{}
	for i := range p.Models {
		m := &p.Models[i]
		if m.Name == "" {
			m.Name = filepath.Base(m.Path)
		}

		if !plainName.MatchString(m.Name) || models[m.Name] {
			return fmt.Errorf("%w: the name %q of a model is no plain word, or is there twice (HINT: give a name)",
				ErrPlan, m.Name)
		}
		if slices.Contains(reserved, m.Name) {
			return fmt.Errorf("%w: the name %q of a model is that of a file of the batch (HINT: give another name)",
				ErrPlan, m.Name)
		}

		models[m.Name] = true
	}

	tasks := map[string]bool{}
	for _, t := range p.Tasks {
		// The folder of its results is named by the entry.
		if strings.ContainsAny(t, "*?[") {
			return fmt.Errorf("%w: %q is a pattern, and an entry of tasks is one task, group, tag, file or "+
				"folder (HINT: list them, or name their folder)", ErrPlan, t)
		}
		if name := entryName(t); !plainName.MatchString(name) || tasks[name] {
			return fmt.Errorf("%w: task %q is there twice, or has no plain name", ErrPlan, t)
		}

		tasks[entryName(t)] = true
	}

	switch c := p.Chat.(type) {
	case nil, bool, string:
	default:
		return fmt.Errorf("%w: apply_chat_template is %v, want true, false or a name", ErrPlan, c)
	}
	if _, chats := p.chats(); p.Multiturn != nil && *p.Multiturn && !chats {
		return fmt.Errorf("%w: fewshot_as_multiturn needs apply_chat_template", ErrPlan)
	}

	return nil
}

// entryName is the name of the folder of an entry of tasks.
func entryName(entry string) string {
	return strings.TrimSuffix(strings.TrimSuffix(filepath.Base(entry), ".yaml"), ".yml")
}

// settle makes paths absolute, and has data looked for in the working directory too.
func (p *Plan) settle() error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}

	absolute := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(here, path)
	}

	model := func(path string) string {
		if dir, ok := hub.Find(path); ok {
			if _, err := os.Stat(path); err != nil {
				return absolute(dir)
			}
		}
		return absolute(path)
	}

	for i := range p.Models {
		m := &p.Models[i]
		m.Path = model(m.Path)
		m.Adapter = model(m.Adapter)
	}

	for i, t := range p.Tasks {
		if _, err := os.Stat(t); err == nil || strings.Contains(t, "/") { // else it is the name of a task
			p.Tasks[i] = absolute(t)
		}
	}

	for i, d := range p.Data {
		p.Data[i] = absolute(d)
	}

	p.Data = append(p.Data, here)
	return nil
}

// chats reports whether models are asked with a chat template, and with which; "": that of the tokenizer.
func (p *Plan) chats() (name string, ok bool) {
	switch c := p.Chat.(type) {
	case bool:
		return "", c
	case string:
		if c == OwnChat {
			return "", true
		}
		return c, c != ""
	}
	return "", false
}

// chat is the chat template that a model of the plan is asked with; nil: none.
func (p *Plan) chat(m PlanModel) (*Chat, error) {
	name, ok := p.chats()
	if !ok {
		return nil, nil
	}

	c, err := ReadChat(m.Path, name)
	if err != nil {
		return nil, fmt.Errorf("apply_chat_template: %w", err)
	}

	c.Multiturn = p.Multiturn == nil || *p.Multiturn
	c.Now = time.Now
	return c, nil
}

// options are those of all runs of the plan, but for the chat template, which is the model's.
func (p *Plan) options() Options {
	o := Options{Limit: p.Limit, Bootstrap: p.Bootstrap, MaxLength: p.MaxLength, System: p.System}
	if p.NumFewshot != nil && *p.NumFewshot != -1 {
		o.Shots = p.NumFewshot
	}
	return o
}
