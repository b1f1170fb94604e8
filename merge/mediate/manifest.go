package mediate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
)

// Where the parts of a mediated folder lie.
const (
	sideFolder   = "mediator"
	manifestName = "mediator.json"
	routerName   = "router.safetensors"
)

// formatVersion is that of the manifest.
const formatVersion = 1

// manifest is mediator/mediator.json.
type manifest struct {
	FormatVersion int           `json:"format_version"`
	Version       string        `json:"version"` // of the program
	Job           string        `json:"job"`
	Base          sourceModel   `json:"base"`
	Experts       []member      `json:"experts"` // by name
	Granularity   string        `json:"granularity"`
	Metric        string        `json:"metric"`
	Density       float64       `json:"density"`
	Baseline      Measures      `json:"baseline"`
	Select        rule          `json:"select"`
	Groups        []groupChoice `json:"groups"`
	Average       string        `json:"average"`
	Dense         string        `json:"dense"`
	Keep          experts.Rule  `json:"keep"`
	DType         string        `json:"dtype"`
	Routed        []string      `json:"routed"` // tensors, in the order of the checkpoint
	Indices       string        `json:"index_type"`
	Router        *routerRecord `json:"router,omitempty"`
	Files         []hashedFile  `json:"files"` // of the mediator folder beside the manifest
	Weights       []hashedFile  `json:"weights"`
	Others        []hashedFile  `json:"other_files,omitempty"` // of the folder: configuration, tokenizer, report
	Complete      bool          `json:"complete"`              // false while the weights are being written
}

// sourceModel is a model that was read.
type sourceModel struct {
	Path  string       `json:"path"`
	Files []hashedFile `json:"files"`
}

// hashedFile is a file as it was.
type hashedFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// member is an expert.
type member struct {
	Name    string                  `json:"name"`
	Source  sourceModel             `json:"source"`
	File    string                  `json:"file,omitempty"` // in the mediator folder; none if nothing is routed
	Tensors map[string]experts.Part `json:"tensors"`
}

// groupChoice is the decision about a group of tensors.
type groupChoice struct {
	Name        string  `json:"name"`
	Layer       int     `json:"layer"`
	Conflict    float64 `json:"d"`
	Numerator   float64 `json:"numerator"`
	Denominator float64 `json:"denominator"`
	Excess      float64 `json:"excess"`
	Bytes       int64   `json:"bytes_at_most"` // that the experts take if it is routed
	Eligible    bool    `json:"eligible"`
	Routed      bool    `json:"routed"`
}

// routerRecord says how requests are routed and what that was calibrated on.
type routerRecord struct {
	Features    string         `json:"features"`
	Classifier  string         `json:"classifier"`
	Shrinkage   float64        `json:"shrinkage"`
	Dim         int            `json:"dim"`
	Prompts     map[string]int `json:"prompts"` // by expert
	HeldOut     int            `json:"held_out"`
	Accuracy    float64        `json:"accuracy"` // on the held-out prompts; 0 without any
	LogLoss     float64        `json:"log_loss"` // nats, on them, after calibration
	Temperature float64        `json:"temperature"`
	Outside     float64        `json:"ood_threshold"`
	Others      int            `json:"foreign_held_out,omitempty"` // prompts that are no expert's
	Told        float64        `json:"foreign_told,omitempty"`     // fraction of them
	Lost        float64        `json:"own_lost,omitempty"`         // fraction of the experts' prompts beyond the threshold
	Mix         float64        `json:"head_weight,omitempty"`      // of the head beside the nearest prompts
}

// manifestMax bounds what is read of a manifest.
const manifestMax = 64 << 20

// readManifest reads and checks the manifest of a mediated folder.
func readManifest(dir string) (*manifest, error) {
	path := filepath.Join(dir, sideFolder, manifestName)
	f, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: experts without their manifest: %w: %w", path, ErrManifest, err)
	}

	if err != nil {
		return nil, err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, manifestMax+1))
	if err != nil {
		return nil, err
	}

	bad := func(format string, args ...any) (*manifest, error) {
		return nil, fmt.Errorf("%s: %s: %w", path, fmt.Sprintf(format, args...), ErrManifest)
	}
	if len(text) > manifestMax {
		return bad("longer than %d bytes", manifestMax)
	}

	// A manifest comes with a model from elsewhere: a key that is not known could mean a format that is not
	// understood.
	var m manifest
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return bad("%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return bad("there is more behind its end")
	}
	if m.FormatVersion != formatVersion {
		return bad("format version %d, this program knows %d", m.FormatVersion, formatVersion)
	}
	if !m.Complete {
		return bad("the folder is not complete")
	}
	if len(m.Experts) == 0 || len(m.Experts) > maxModels {
		return bad("%d experts", len(m.Experts))
	}

	names := map[string]bool{}
	for _, e := range m.Experts {
		if names[e.Name] || e.Name == "" {
			return bad("two experts %.80q, or one without a name", e.Name)
		}

		names[e.Name] = true
		// Names are joined to the folder's path: a path in one would read files outside of it.
		if !plain(e.File) && (e.File != "" || len(e.Tensors) > 0) {
			return bad("file %.80q is no plain name", e.File)
		}
	}

	for _, x := range slices.Concat(m.Files, m.Weights, m.Others) {
		if !plain(x.Name) {
			return bad("file %.80q is no plain name", x.Name)
		}
	}

	// Every file beside the weights must be one whose change would be noticed.
	for _, name := range m.side() {
		if !lists(m.Files, name) {
			return bad("no hash of %.80q", name)
		}
	}

	return &m, nil
}

// side are the files that must lie beside the manifest.
func (m *manifest) side() (names []string) {
	for _, e := range m.Experts {
		if e.File != "" {
			names = append(names, e.File)
		}
	}
	if m.Router != nil {
		names = append(names, routerName)
	}
	return names
}

// lists reports whether a file of a name is among some.
func lists(list []hashedFile, name string) bool {
	return slices.ContainsFunc(list, func(f hashedFile) bool { return f.Name == name })
}

// ExpertBytes is the size of the experts' files.
func (m *manifest) ExpertBytes() (sum int64) {
	for _, f := range m.Files {
		if f.Name != routerName {
			sum += f.Size
		}
	}
	return sum
}

// plain reports whether a name is that of a file in its folder.
func plain(name string) bool {
	return filepath.IsLocal(name) && filepath.Base(name) == name && name != "."
}

// Text is the manifest as it is written.
func (m *manifest) Text() ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	return append(text, '\n'), err
}

// Embeddings reports whether tensors outside of layers are routed.
func (m *manifest) Embeddings() bool {
	for _, g := range m.Groups {
		if g.Routed && g.Layer < 0 {
			return true
		}
	}
	return false
}

// Write writes the manifest into its folder.
func (m *manifest) Write(side string) error {
	text, err := m.Text()
	if err != nil {
		return err
	}
	return output.WriteFile(filepath.Join(side, manifestName), text)
}
