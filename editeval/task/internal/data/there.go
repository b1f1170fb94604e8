package data

// There checks that every file can be found, without reading any. The error wraps ErrNotFound.
func (s Source) There() error {
	for _, name := range s.Files {
		if _, err := s.find(name); err != nil {
			return err
		}
	}
	return nil
}
