package edit

// Work is what writing one fact by a method takes at most, in tokens that pass forward through all of a model's decoder
// layers; searches that end early take less, often half. A pass back, down to what is searched for, counts as one
// forward. Unknown methods take nothing.
func Work(method string, h HParams, layers int, r *Encoded) float64 {
	if m, err := find(method); err != nil || m.name == "ike" {
		return 0
	}

	whole := float64(len(r.bare()) + len(r.Target))
	steps := float64(h.Steps)
	switch method {
	case "ultraedit":
		return 2 * whole
	case "ft", "ft-l", "ft-m", "lora":
		return 2 * steps * whole
	}

	above := 1.0
	if n := len(h.Layers); n > 0 && layers > 0 {
		above = float64(layers-h.Layers[n-1]) / float64(layers)
	}
	if method == "grace" { // from the prompt's last token on
		return whole + 2*steps*float64(1+len(r.Target))*above
	}

	// A search, or a lesson, begins again at the layer and at the subject's last token: what is before them does not
	// change. All of it is computed once.
	once, rows := 0.0, 0.0
	for i, p := range r.Prompts {
		once += float64(len(p) + len(r.Target))
		rows += float64(len(p) - r.Lookup[i] + len(r.Target))
	}
	if h.KL != 0 && len(r.KL) > 0 {
		once += float64(len(r.KL))
		rows += float64(len(r.KL) - r.KLLookup)
	}

	return once + 2*steps*rows*above
}
