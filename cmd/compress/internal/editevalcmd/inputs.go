package editevalcmd

// Inputs are what a plan names: files and folders, and tasks with the folders of their data. A plan with faults
// has none.
func Inputs(file string, text []byte) (paths, tasks, data []string) {
	p, err := parse(file, text, 0)
	if err != nil {
		return nil, nil, nil
	}

	add := func(path string) {
		if path != "" {
			paths = append(paths, path)
		}
	}

	for _, m := range p.Models {
		add(m.Path)
		add(m.Adapter)
	}

	for _, path := range append(p.Edits, p.Data...) {
		add(path)
	}
	for _, t := range p.Texts {
		add(t.File)
	}

	add(p.Stats.File)
	if p.Safety != nil {
		add(p.Safety.File)
	}
	for _, t := range p.Tasks {
		tasks = append(tasks, t.Entry)
	}

	return paths, tasks, p.Data
}
