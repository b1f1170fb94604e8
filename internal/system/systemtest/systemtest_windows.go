package systemtest

import "errors"

func pipe(string) error { return errors.ErrUnsupported }

func limitFiles(uint64) error { return errors.ErrUnsupported }

func mostFiles() (uint64, bool) { return 0, false }
