package prune

import "github.com/modelcompress/compress/prune/internal/manifest"

// ManifestFile is the name of a pruned folder's record: JSON with the metric, the options, the hash and seed of
// the calibration ids, the fingerprint of the model before, and the exact zeros of every matrix. The same run
// gives the same bytes.
const ManifestFile = "pruning.json"

// attachManifest adds the record to the output.
func (w *walk) attachManifest() error {
	r := w.report
	m := manifest.Manifest{
		Metric: r.Options.Metric, Options: r.Options, Meaning: r.Meaning, Fingerprint: r.Model.Fingerprint,
		Calibration: manifest.Calibrated(r.Calibration), Weights: r.Total.Weights, Zeros: r.Total.Zeros,
		Sparsity: r.Total.Sparsity,
	}

	for _, t := range r.Tensors {
		m.Tensors = append(m.Tensors, manifest.Tensor{
			Name: t.Name, Weights: t.Kept + t.Zeros, Zeros: t.Zeros,
			Sparsity: t.Sparsity, Dense: t.Dense,
		})
	}

	text, err := m.JSON()
	if err != nil {
		return err
	}

	return w.o.Out.AddFile(ManifestFile, text)
}
