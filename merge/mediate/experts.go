package mediate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/vocab"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/merge/mediate/internal/router"
	"github.com/modelcompress/compress/safetensors"
)

// Experts is an open folder that mediate wrote: a dense model and the experts beside it.
type Experts struct {
	dir      string
	manifest *manifest
	members  []*experts.Expert
	dense    *safetensors.Dir
	router   *router.Router // nil: none
}

// IsFolder reports whether a folder holds experts: a manifest, or files of experts or of a router that have
// lost theirs.
func IsFolder(dir string) bool {
	entries, err := os.ReadDir(filepath.Join(dir, sideFolder))
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Name() == manifestName || e.Name() == routerName || experts.IsFile(e.Name())
	})
}

// Open opens a folder that mediate wrote, and checks that its files fit each other. Of hashes only the router's is
// compared; Verify compares all.
func Open(ctx context.Context, dir string) (e *Experts, err error) {
	// Half opened, it is still what holds the files, so errors below return it for this to close.
	e = &Experts{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
			e = nil
		}
	}()

	if e.manifest, err = readManifest(dir); err != nil {
		return e, err
	}
	if e.dense, err = safetensors.OpenDir(dir); err != nil {
		return e, err
	}

	for _, name := range e.dense.Shards() {
		if !lists(e.manifest.Weights, name) {
			return e, fmt.Errorf("%s: the manifest has no hash of %q: %w", dir, name, ErrManifest)
		}
	}

	for _, m := range e.manifest.Experts {
		if m.File == "" {
			// An expert that differs nowhere from the dense model has no file.
			e.members = append(e.members, &experts.Expert{Name: m.Name})
			continue
		}

		x, err := experts.Open(e.side(m.File), m.Name, m.Tensors, e.dense)
		if err != nil {
			return e, err
		}

		e.members = append(e.members, x)
	}
	if err := experts.Link(e.members); err != nil {
		return e, fmt.Errorf("%s: %w", dir, err)
	}

	// Sizes cost nothing to compare, and betray a copy that was cut off or comes from another merge.
	for _, f := range e.manifest.Files {
		if st, err := os.Stat(e.side(f.Name)); err != nil {
			return e, err
		} else if st.Size() != f.Size {
			return e, fmt.Errorf("%s: %d bytes, the manifest says %d: %w", e.side(f.Name), st.Size(), f.Size, ErrHash)
		}

		if f.Name == routerName && e.manifest.Router != nil {
			if err := compareHash(ctx, e.side(f.Name), f); err != nil {
				return e, err
			}
			if e.router, err = router.Load(e.side(f.Name), len(e.members)); err != nil {
				return e, err
			}
		}
	}

	return e, nil
}

// side is the path of a file beside the manifest.
func (e *Experts) side(name string) string { return filepath.Join(e.dir, sideFolder, name) }

// Close closes all files.
func (e *Experts) Close() error {
	var errs []error
	for _, x := range e.members {
		errs = append(errs, x.Close())
	}
	if e.dense != nil {
		errs = append(errs, e.dense.Close())
	}
	return errors.Join(errs...)
}

// Dir is the folder.
func (e *Experts) Dir() string { return e.dir }

// Names lists the experts, in the order of weights.
func (e *Experts) Names() []string {
	var names []string
	for _, m := range e.manifest.Experts {
		names = append(names, m.Name)
	}
	return names
}

// HasRouter reports whether the folder can route prompts.
func (e *Experts) HasRouter() bool { return e.router != nil }

// Weights puts weights by name in the order of Names. They must be finite as float32; experts that are not named get 0.
func (e *Experts) Weights(byName map[string]float64) ([]float64, error) {
	list := make([]float64, len(e.members))
	for _, name := range slices.Sorted(maps.Keys(byName)) { // of several faults the same is told every time
		w := byName[name]
		i := slices.Index(e.Names(), name)
		if i < 0 {
			return nil, fmt.Errorf("expert %.80q; there are %s: %w", name, strings.Join(e.Names(), ", "),
				ErrUnknownExpert)
		}
		if err := sane(name, w); err != nil {
			return nil, err
		}

		list[i] = w
	}

	return list, nil
}

// sane refuses weights that are not finite as float32.
func sane(name string, w float64) error {
	if math.IsNaN(w) || math.Abs(w) > math.MaxFloat32 {
		return fmt.Errorf("expert %s: weight %v, want a finite float32: %w", name, w, output.ErrOption)
	}
	return nil
}

func compareHash(ctx context.Context, path string, want hashedFile) error {
	got, err := hash(ctx, path)
	if err == nil && (got.SHA256 != want.SHA256 || got.Size != want.Size) {
		err = fmt.Errorf("%s: %w", path, ErrHash)
	}
	return err
}

// VerifiedExpert is what is known of an expert of a folder.
type VerifiedExpert struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Tensors int    `json:"tensors"`
	Kept    int64  `json:"kept"` // elements
	// Error is ‖what is not restored‖/‖difference from the dense model‖ over the routed tensors.
	Error float64 `json:"reconstruction_error"`
	// Measured reports that Error was measured again on the expert's own files, which are still there unchanged;
	// otherwise it is what was noted when the folder was made.
	Measured bool `json:"measured"`
}

// Verification is the result of Verify.
type Verification struct {
	Files   int              `json:"files"` // whose hashes were compared
	Bytes   int64            `json:"bytes"`
	Routed  int              `json:"routed_tensors"`
	Experts []VerifiedExpert `json:"experts"`
}

// Verify compares the hashes of all files, the numbers of kept elements, and gives the errors of reconstruction.
func (e *Experts) Verify(ctx context.Context) (*Verification, error) {
	v := &Verification{Routed: len(e.manifest.Routed)}
	for _, x := range []struct {
		dir  string
		list []hashedFile
	}{
		{filepath.Join(e.dir, sideFolder), e.manifest.Files},
		{e.dir, e.manifest.Weights},
		{e.dir, e.manifest.Others},
	} {
		for _, f := range x.list {
			if err := compareHash(ctx, filepath.Join(x.dir, f.Name), f); err != nil {
				return nil, err
			}
			v.Files++
			v.Bytes += f.Size
		}
	}

	for i, m := range e.manifest.Experts {
		one := VerifiedExpert{Name: m.Name, Bytes: e.members[i].Bytes(), Tensors: len(m.Tensors)}
		var energy, lost float64
		for _, name := range e.manifest.Routed { // in a fixed order
			p, ok := m.Tensors[name]
			if !ok {
				return nil, fmt.Errorf("%s: expert %s lacks the routed tensor %q: %w", e.dir, m.Name, name,
					ErrManifest)
			}

			one.Kept += p.Kept
			energy, lost = energy+p.Energy, lost+p.Lost
		}

		if energy > 0 {
			one.Error = math.Sqrt(lost / energy)
		}
		if err := e.measure(ctx, i, &one); err != nil {
			return nil, err
		}

		v.Experts = append(v.Experts, one)
	}

	return v, nil
}

// measure compares the restored expert with its own files, if these are as they were.
func (e *Experts) measure(ctx context.Context, member int, v *VerifiedExpert) error {
	src := e.manifest.Experts[member].Source
	own, paths, err := openOwn(ctx, src.Path)
	if err != nil {
		return nil // the expert's folder need not be there any more
	}
	defer own.Close()

	for _, f := range src.Files {
		got, err := hash(ctx, paths[f.Name])
		if err != nil || got.SHA256 != f.SHA256 {
			return ctx.Err()
		}
	}

	weights := make([]float64, len(e.members))
	weights[member] = 1

	var energy, lost float64
	for _, name := range e.manifest.Routed {
		a, b, err := e.errorOf(own, name, weights)
		if errors.Is(err, errOther) {
			return nil
		}

		if err != nil {
			return err
		}
		energy, lost = energy+a, lost+b
	}

	v.Measured = true
	v.Error = 0
	if energy > 0 {
		v.Error = math.Sqrt(lost / energy)
	}

	return nil
}

// openOwn opens an expert's own model, and gives the paths of its files by their names.
func openOwn(ctx context.Context, path string) (own safetensors.Source, paths map[string]string, err error) {
	src, err := weights.Open(ctx, path)
	if err != nil {
		return nil, nil, err
	}

	paths = map[string]string{}
	for _, f := range src.Files() {
		paths[filepath.Base(f)] = f
	}

	return src, paths, nil
}

// errOther: an expert's own tensor is stored in another way than the dense model's.
var errOther = errors.New("stored differently")

// errorOf gives ‖own - dense‖² and ‖own - restored‖² of a tensor.
func (e *Experts) errorOf(own safetensors.Source, name string, weights []float64) (energy, lost float64, err error) {
	info, _ := e.dense.Info(name)
	theirs, ok := own.Info(name)
	if !ok || theirs.DType != info.DType || !slices.Equal(theirs.Shape, info.Shape) {
		return 0, 0, errOther
	}

	dense, err := e.dense.Bytes(name)
	if err != nil {
		return 0, 0, err
	}

	data, err := own.Bytes(name)
	if err != nil {
		return 0, 0, err
	}

	restored := make([]byte, len(dense))
	var ws experts.Workspace
	if err := e.whole(&ws, info, dense, weights, 0, experts.Chunks(info.Elements()), restored); err != nil {
		return 0, 0, err
	}
	if energy, err = experts.Apart(info.DType, data, dense); err != nil {
		return 0, 0, err
	}

	lost, err = experts.Apart(info.DType, data, restored)
	return energy, lost, err
}

// whole puts the chunks [first, end) of a tensor together into out.
func (e *Experts) whole(ws *experts.Workspace, info safetensors.Info, dense []byte, weights []float64, first, end int,
	out []byte,
) error {
	size := experts.Chunk * (info.DType.Bits() / 8)
	for c := first; c < end; c++ {
		part := out[(c-first)*size : min((c-first+1)*size, len(out))]
		if err := ws.Whole(e.weighted(weights), info.Name, info.DType, dense, c, part); err != nil {
			return err
		}
	}
	return nil
}

// weighted pairs the experts with weights.
func (e *Experts) weighted(weights []float64) []experts.Weighted {
	list := make([]experts.Weighted, len(e.members))
	for i, x := range e.members {
		list[i] = experts.Weighted{Expert: x, Weight: weights[i]}
	}
	return list
}

// ExportOptions are the choices of Export. The zero value is ready.
type ExportOptions struct {
	Threads   int                     // CPU threads; 0: one for each processor. The output does not depend on it
	MaxShard  int64                   // bytes per file; 0: no bound
	Overwrite bool                    // replace an existing checkpoint once the new one is complete
	Resume    bool                    // continue an interrupted export
	Progress  func(done, total int64) // bytes; may be nil
}

// Exported is what Export wrote; it lies in the output as merge.json.
type Exported struct {
	Version string             `json:"version"`
	Job     string             `json:"job"`
	Method  string             `json:"method"`
	From    string             `json:"mediated_folder"`
	Weights map[string]float64 `json:"weights"`
	Tensors int                `json:"tensors"`
	Bytes   int64              `json:"bytes_out"`
}

// Export writes the folder's model under fixed weights, in the order of Names, as an ordinary checkpoint to
// dst. One weight of 1 restores what was kept of an expert, bit for bit. The hashes of the experts that it
// takes are compared first; that of the dense model is left to Verify.
func (e *Experts) Export(ctx context.Context, dst string, weights []float64, o ExportOptions) (*Exported, error) {
	if len(weights) != len(e.members) || o.Threads < 0 || o.MaxShard < 0 {
		return nil, fmt.Errorf("%d weights for %d experts, %d threads: %w", len(weights), len(e.members), o.Threads,
			output.ErrOption)
	}

	for i, w := range weights {
		if err := sane(e.Names()[i], w); err != nil {
			return nil, err
		}
	}

	dst, err := filepath.Abs(dst)
	if err != nil {
		return nil, err
	}

	if err := e.checkUsed(ctx, weights); err != nil {
		return nil, err
	}
	if err := output.Apart(e.dir, dst); err != nil {
		return nil, err
	}

	r := &Exported{Version: build.Version(), Method: "mediate", From: e.dir, Weights: map[string]float64{}}
	for i, n := range e.Names() {
		r.Weights[n] = weights[i]
	}

	var infos []safetensors.Info
	for _, n := range e.dense.Names() {
		info, _ := e.dense.Info(n)
		infos = append(infos, info)
		r.Bytes += info.Size
	}

	r.Tensors = len(infos)
	// The sums of all files stand for their contents: what was changed by hand does not continue an export of the
	// old ones.
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(
		[]any{"export", e.manifest.Job, e.manifest.Files, e.manifest.Weights, weights, o.MaxShard}); err != nil {
		return nil, err
	}

	r.Job = hex.EncodeToString(h.Sum(nil))
	out, err := output.Open(dst,
		output.Options{Overwrite: o.Overwrite, Resume: o.Resume, Job: r.Job, Tensors: infos, MaxShard: o.MaxShard})
	if err != nil || out.Complete() {
		return r, err
	}

	if err := e.export(ctx, out, infos, weights, o, r); err != nil {
		// What can be resumed leaves its parts where they are; any other error would meet them again.
		if stage.Resumable(ctx, err) {
			return nil, errors.Join(err, out.Suspend())
		}
		return nil, errors.Join(err, out.Abort())
	}

	return r, nil
}

// checkUsed compares the hashes of the experts that weights take, and of those in whose files lies what these share.
func (e *Experts) checkUsed(ctx context.Context, weights []float64) error {
	used := map[string]bool{}
	for i, m := range e.manifest.Experts {
		if weights[i] == 0 {
			continue
		}
		used[m.Name] = true
		for _, p := range m.Tensors {
			used[p.Of] = true
		}
	}

	for _, m := range e.manifest.Experts {
		if !used[m.Name] || m.File == "" {
			continue
		}

		at := slices.IndexFunc(e.manifest.Files, func(f hashedFile) bool { return f.Name == m.File })
		if err := compareHash(ctx, e.side(m.File), e.manifest.Files[at]); err != nil {
			return err
		}
	}

	return nil
}

// export writes into an open output.
func (e *Experts) export(ctx context.Context, out *output.Folder, infos []safetensors.Info, weights []float64,
	o ExportOptions, r *Exported,
) error {
	threads := o.Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}

	var done int64
	for _, info := range infos {
		if !out.Done(info.Name) {
			if err := e.exportTensor(ctx, out, info, weights, threads); err != nil {
				return err
			}
			if err := out.Written(info.Name); err != nil {
				return err
			}
		}

		done += info.Size
		if o.Progress != nil {
			o.Progress(done, r.Bytes)
		}
	}

	return out.Finish(func(dir string) error {
		config, err := readSmall(filepath.Join(e.dir, "config.json"))
		if err == nil {
			err = output.WriteFile(filepath.Join(dir, "config.json"), config)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := vocab.CopyFiles(e.dir, dir); err != nil {
			return err
		}

		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}

		return output.WriteFile(filepath.Join(dir, output.ManifestName), append(text, '\n'))
	})
}

// exportChunks is how many chunks of a tensor are written at a time by a worker.
const exportChunks = 16

// exportTensor writes one tensor, parts of it side by side.
func (e *Experts) exportTensor(ctx context.Context, out *output.Folder, info safetensors.Info, weights []float64,
	threads int,
) error {
	dense, err := e.dense.Bytes(info.Name)
	if err != nil {
		return err
	}
	defer func() { _ = e.dense.Release(info.Name) }() // a failing release costs memory alone

	g, ctx := mmapsafe.WithContext(ctx)
	g.SetLimit(threads)

	if !slices.Contains(e.manifest.Routed, info.Name) {
		const piece = 4 << 20
		for at := int64(0); at < info.Size; at += piece {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return out.WriteAt(info.Name, dense[at:min(at+piece, info.Size)], at)
			})
		}

		return g.Wait()
	}

	chunks := experts.Chunks(info.Elements())
	size := experts.Chunk * int64(info.DType.Bits()/8)
	for first := 0; first < chunks; first += exportChunks {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}

			lo, hi := int64(first)*size, min(int64(first+exportChunks)*size, info.Size)
			part := make([]byte, hi-lo)
			var ws experts.Workspace
			if err := e.whole(&ws, info, dense, weights, first, min(first+exportChunks, chunks), part); err != nil {
				return err
			}

			return out.WriteAt(info.Name, part, lo)
		})
	}

	return g.Wait()
}
