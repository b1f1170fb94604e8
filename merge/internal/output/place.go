package output

// Stage is the hidden folder that becomes the output. What is put there in folders of their own stays, and is published with
// the rest.
func (f *Folder) Stage() string { return f.stage }
