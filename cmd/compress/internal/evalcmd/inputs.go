package evalcmd

// Inputs are what a plan names: files and folders, and tasks with the folders of their data. A plan with faults
// has none.
func Inputs(file string, text []byte) (paths, tasks, data []string) {
	p, err := readPlanText(file, text)
	if err != nil {
		return nil, nil, nil
	}

	for _, m := range p.Models {
		paths = append(paths, m.Path)
		if m.Adapter != "" {
			paths = append(paths, m.Adapter)
		}
	}

	return append(paths, p.Data...), p.Tasks, p.Data
}
