package router

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/safetensors"
)

// field is a tensor of a router's file, row-major: F64, or U32 if it counts.
type field struct {
	name  string
	rows  int // -1: a vector
	cols  int
	data  []float64
	whole []uint32
	count bool
}

func (f field) dtype() safetensors.DType {
	if f.count {
		return safetensors.U32
	}
	return safetensors.F64
}

// fields lists what is stored. With the contents nil it is the layout of a router of that kind.
func (r *Router) fields() []field {
	if r.shelf != nil {
		return r.nearestFields(r.experts, r.Dim(), len(r.shelf.grams), len(r.shelf.ends))
	}

	t, d := r.Mean.Rows, r.Mean.Cols
	one := func(name string, rows, cols int, data []float64) field {
		return field{name: name, rows: rows, cols: cols, data: data}
	}
	list := []field{
		one("mean", t, d, r.Mean.Data),
		one("chol", d, d, r.Chol.Data),
		one("bias", -1, t, r.Bias),
		one("prior", -1, t, r.Prior),
		one("temperature", -1, 1, []float64{r.Temperature}),
		one("ood_threshold", -1, 1, []float64{r.Outside}),
	}

	switch r.Classifier {
	case "logistic":
		l := r.linear
		list = append(list, one("linear.weight", t, d, l.weight.Data), one("linear.bias", -1, t, l.bias),
			one("centre", -1, d, l.centre), one("scale", -1, 1, []float64{l.scale}))
	case "mlp":
		n := r.network
		sizes := []int{d, hiddenSize, hiddenSize, t}
		for i := range n.weight {
			list = append(list, one(fmt.Sprintf("layer%d.weight", i), sizes[i+1], sizes[i], n.weight[i].Data),
				one(fmt.Sprintf("layer%d.bias", i), -1, sizes[i+1], n.bias[i]))
		}

		list = append(list, one("centre", -1, d, n.centre), one("scale", -1, 1, []float64{n.scale}))
	}

	return list
}

func (f field) shape() []int64 {
	if f.rows < 0 {
		return []int64{int64(f.cols)}
	}
	return []int64{int64(f.rows), int64(f.cols)}
}

// Save writes the router to a new file.
func (r *Router) Save(path string) error {
	var infos []safetensors.Info
	for _, f := range r.fields() {
		infos = append(infos, safetensors.Info{Name: f.name, DType: f.dtype(), Shape: f.shape()})
	}

	w, err := safetensors.Create(path, infos, map[string]string{"classifier": r.Classifier}, safetensors.Options{})
	if err != nil {
		return err
	}

	for _, f := range r.fields() {
		var data []byte
		for _, v := range f.data {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
		}
		for _, v := range f.whole {
			data = binary.LittleEndian.AppendUint32(data, v)
		}

		if err := w.WriteTensor(f.name, data); err != nil {
			_ = w.Abort() // the first error counts
			return err
		}
	}

	return w.Finish()
}

// maxDim bounds the length of features, so that a covariance has a size that memory can hold.
const maxDim = 1 << 16

// Load reads a router for some experts.
func Load(path string, experts int) (*Router, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	bad := func(format string, args ...any) (*Router, error) {
		return nil, fmt.Errorf("%s: %s: %w", path, fmt.Sprintf(format, args...), ErrFile)
	}
	if f.Metadata()["classifier"] == Nearest {
		r, err := loadNearest(f, experts)
		if err != nil {
			return bad("%v", err)
		}
		return r, nil
	}

	mean, ok := f.Info("mean")
	if !ok || len(mean.Shape) != 2 || mean.Shape[0] != int64(experts) || mean.Shape[1] < 1 || mean.Shape[1] > maxDim {
		return bad("mean %v, want [%d, d]", mean.Shape, experts)
	}

	d := int(mean.Shape[1])

	// The layout follows from kind, classes and width alone, so every shape is checked before anything is allocated
	// by the file's word.
	r := &Router{Classifier: f.Metadata()["classifier"]}
	r.Mean.Rows, r.Mean.Cols = experts, d

	switch r.Classifier {
	case "lda":
	case "logistic":
		r.linear = &linear{}
	case "mlp":
		r.network = &network{}
	default:
		return bad("classifier %.40q", r.Classifier)
	}

	values := map[string][]float64{}
	for _, x := range r.fields() {
		if values[x.name], err = read(f, x); err != nil {
			return bad("%v", err)
		}
	}

	r.fill(values, experts, d)
	if !(r.Temperature > 0) || !(r.Outside >= 0) { // so that NaN is refused too
		return bad("temperature %v, threshold %v", r.Temperature, r.Outside)
	}

	for _, p := range r.Prior {
		if !(p > 0 && p <= 1) {
			return bad("prior %v", p)
		}
	}

	if err := r.prepare(); err != nil {
		return bad("%v", err)
	}

	return r, nil
}

// loadNearest reads a router by nearest prompts.
func loadNearest(f *safetensors.File, experts int) (*Router, error) {
	sizes := map[string]int64{}
	for _, name := range []string{"centre", "grams", "ends"} {
		info, ok := f.Info(name)
		if !ok || len(info.Shape) != 1 || info.Shape[0] < 1 || info.Shape[0] > math.MaxInt32 {
			return nil, fmt.Errorf("%s %v, want a vector", name, info.Shape)
		}
		sizes[name] = info.Shape[0]
	}
	d := int(sizes["centre"])
	if d > maxDim {
		return nil, fmt.Errorf("features of %d elements", d)
	}

	r := &Router{Classifier: Nearest, linear: &linear{}, shelf: &shelf{}}
	values, counts := map[string][]float64{}, map[string][]uint32{}
	for _, x := range r.nearestFields(experts, d, int(sizes["grams"]), int(sizes["ends"])) {
		var err error
		if x.count {
			counts[x.name], err = readCounts(f, x)
		} else {
			values[x.name], err = read(f, x)
		}
		if err != nil {
			return nil, err
		}
	}

	return r, r.fillNearest(values, counts, experts, d)
}

// readCounts reads a field of counts.
func readCounts(f *safetensors.File, x field) ([]uint32, error) {
	info, ok := f.Info(x.name)
	if !ok || info.DType != safetensors.U32 || len(info.Shape) != 1 || info.Shape[0] != int64(x.cols) {
		return nil, fmt.Errorf("tensor %q is %s %v, want U32 [%d]", x.name, info.DType, info.Shape, x.cols)
	}

	out := make([]uint32, x.cols)
	err := f.View(x.name, func(data []byte) error {
		for i := range out {
			out[i] = binary.LittleEndian.Uint32(data[4*i:])
		}
		return nil
	})

	return out, err
}

// read reads a field and refuses values that are not finite.
func read(f *safetensors.File, x field) ([]float64, error) {
	info, ok := f.Info(x.name)
	want := x.shape()
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing", x.name)
	}
	if info.DType != safetensors.F64 || len(info.Shape) != len(want) ||
		info.Size != 8*want[0]*max(1, want[len(want)-1]) && len(want) == 2 {
		return nil, fmt.Errorf("tensor %q is %s %v, want F64 %v", x.name, info.DType, info.Shape, want)
	}

	for i := range want {
		if info.Shape[i] != want[i] {
			return nil, fmt.Errorf("tensor %q is %v, want %v", x.name, info.Shape, want)
		}
	}

	out := make([]float64, info.Size/8)
	err := f.View(x.name, func(data []byte) error {
		for i := range out {
			out[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
			// NaN and the infinities are the values that differ from themselves by something else than 0.
			if out[i]-out[i] != 0 {
				return fmt.Errorf("tensor %q, element %d is %v", x.name, i, out[i])
			}
		}
		return nil
	})

	return out, err
}

// fill puts what was read in its places.
func (r *Router) fill(v map[string][]float64, experts, d int) {
	r.Mean, r.Chol = linalg.Of(v["mean"], experts, d), linalg.Of(v["chol"], d, d)
	r.Bias, r.Prior = v["bias"], v["prior"]
	r.Temperature, r.Outside = v["temperature"][0], v["ood_threshold"][0]

	switch r.Classifier {
	case "logistic":
		*r.linear = linear{
			weight: linalg.Of(v["linear.weight"], experts, d), bias: v["linear.bias"],
			centre: v["centre"], scale: v["scale"][0],
		}
	case "mlp":
		sizes := []int{d, hiddenSize, hiddenSize, experts}
		*r.network = network{centre: v["centre"], scale: v["scale"][0]}
		for i := range r.network.weight {
			r.network.weight[i] = linalg.Of(v[fmt.Sprintf("layer%d.weight", i)], sizes[i+1], sizes[i])
			r.network.bias[i] = v[fmt.Sprintf("layer%d.bias", i)]
		}
	}
}
