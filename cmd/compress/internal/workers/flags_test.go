package workers

import "testing"

// TestAddresses: what is no address is refused by its form alone.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"nats://host:4222": true, "host:4222": true, "nats://a:b@one:1, tls://two": true, "ws://[::1]:80": true,
		"127.0.0.1:4222": true,
		"http://x":       false, "nats://": false, "nats://:4222": false, "one,": false, "nats://host:port": false,
		"a b": false,
	} {
		if got := isCluster(text); got != want {
			t.Errorf("cluster %q: %t", text, got)
		}
	}

	for text, want := range map[string]bool{
		"127.0.0.1:0": true, ":4222": true, "[::1]:4222": true, "host:65535": true,
		"nonsense": false, "host:": false, "host:65536": false, "host:-1": false, "::1:4222": false, "host:nats": false,
	} {
		if got := isPort(text); got != want {
			t.Errorf("port %q: %t", text, got)
		}
	}
}
