package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestForeignServers: a cluster that is not ours. Streams of other programs are left alone; a server without
// JetStream, one that wants to know who is there, one that speaks something else and one that is not there end
// the verb with one line.
func TestForeignServers(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	t.Chdir(t.TempDir())
	plan := "version: 1\njobs:\n  small: {verb: inspect, args: [" + nano + "/base]}\n"
	if err := os.WriteFile("jobs.yaml", []byte(plan), 0o666); err != nil {
		t.Fatal(err)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says something else
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()

	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()

	shared := natsServer(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	others(t, shared)
	gone := natsServer(t, &server.Options{})
	nobody := gone.ClientURL()
	gone.Shutdown()
	gone.WaitForShutdown()

	for name, c := range map[string]struct{ url, says string }{
		"plain": {natsServer(t, &server.Options{}).ClientURL(), "JetStream"},
		"password": {
			natsServer(t,
				&server.Options{JetStream: true, StoreDir: t.TempDir(), Username: "a", Password: "b"}).ClientURL(),
			"uthori",
		},
		"wrong": {
			strings.Replace(
				natsServer(t,
					&server.Options{JetStream: true, StoreDir: t.TempDir(), Username: "a", Password: "b"}).ClientURL(),
				"://", "://a:secret-word@", 1), "uthori",
		},
		"no NATS":    {"nats://" + silent.Addr().String(), silent.Addr().String()},
		"nobody":     {nobody, nobody},
		"no address": {"nats://127.0.0.1:99999999", "99999999"},
	} {
		for _, verb := range [][]string{{"run", "jobs.yaml", "--out", "built"}, {"worker"}} {
			var stdout, stderr bytes.Buffer
			code := run(append(verb, "--cluster", c.url), &stdout, &stderr)
			said := stderr.String()
			if code != 1 || strings.Count(said, "\n") != 1 || !strings.Contains(said, c.says) ||
				strings.Contains(said, "secret-word") {
				t.Errorf("%s, %s: exit code %d, want 1 and %q: %s", name, verb[0], code, c.says, said)
			}
		}
	}

	var said bytes.Buffer
	if code := run([]string{"worker", "--cluster", "http://127.0.0.1:4222"}, io.Discard, &said); code != 2 ||
		!strings.Contains(said.String(), `"http://127.0.0.1:4222"`) {
		t.Errorf("another scheme: exit code %d, want 2: %s", code, said.String())
	}

	out, err := exec.Command(program(t), "run", "jobs.yaml", "--out", "done", "--quiet", "--workers", "1", "--cluster",
		shared.ClientURL()).CombinedOutput()
	if err != nil {
		t.Errorf("beside other programs' streams: %v: %s", err, out)
	}

	if got := streams(t, shared); got != "KV_config orders" {
		t.Errorf("streams %q, want those of others alone", got)
	}
}

// natsServer starts a server of its own.
func natsServer(t *testing.T, o *server.Options) *server.Server {
	t.Helper()
	o.Host = "127.0.0.1"
	o.NoSigs = true
	o.NoLog = true
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}

	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}

	s.Start()
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server did not start")
	}

	return s
}

// others makes a stream and a bucket as another program would.
func others(t *testing.T, s *server.Server) {
	t.Helper()
	js := connection(t, s)
	if _, err := js.CreateStream(t.Context(),
		jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "config"}); err != nil {
		t.Fatal(err)
	}
}

func connection(t *testing.T, s *server.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}

	return js
}

// streams lists those that are not the list of offers, which stays.
func streams(t *testing.T, s *server.Server) string {
	t.Helper()
	var names []string
	list := connection(t, s).StreamNames(t.Context())
	for n := range list.Name() {
		if n != "KV_compress_offers" {
			names = append(names, n)
		}
	}

	slices.Sort(names)
	return strings.Join(names, " ")
}
