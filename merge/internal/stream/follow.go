package stream

// Follow calls show after each wake, and once at the end, from one goroutine, until it is stopped. Wakes should
// not block.
func Follow(wake <-chan struct{}, show func()) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)

		for {
			select {
			case <-wake:
				show()
			case <-end:
				show()
				return
			}
		}
	}()

	return func() { close(end); <-ended }
}
