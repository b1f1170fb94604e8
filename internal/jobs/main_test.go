package jobs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
	"github.com/nats-io/nats-server/v2/server"
)

// TestMain makes the test program a worker where the environment says so.
func TestMain(m *testing.M) {
	if url := os.Getenv("JOBS_TEST_WORKER"); url != "" {
		if err := workerProcess(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// workerProcess serves offers of kind "square" until it is killed.
func workerProcess(url string) error {
	ctx := context.Background()
	c, err := Connect(ctx, Options{URL: url, Name: strconv.Itoa(os.Getpid())})
	if err != nil {
		return err
	}
	defer c.Close()

	return c.Join(ctx, 2, func(_ context.Context, o Offer, spec []byte) (Handler, func(), error) {
		if o.Contract != os.Getenv("JOBS_TEST_CONTRACT") {
			return nil, nil, fmt.Errorf("%w: contract %s", ErrRefused, o.Contract)
		}

		return func(_ context.Context, it Item) ([]byte, error) {
			if it.ID == "deadly" {
				return nil, systemtest.Kill(os.Getpid())
			}

			// Some items kill the first worker that begins them.
			n, err := strconv.Atoi(string(it.Data))
			mark := filepath.Join(string(spec), it.ID)
			if err == nil && n%7 == 3 {
				if f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
					f.Close()
					return nil, systemtest.Kill(os.Getpid())
				}
			}

			return square(it)
		}, nil, nil
	})
}

// cluster is a server that is not inside a coordinator: whoever reaches it may do everything.
func cluster(t *testing.T, dir string, port int) *server.Server {
	s, err := server.NewServer(&server.Options{
		ServerName: "cluster", JetStream: true, StoreDir: dir, NoSigs: true,
		NoLog: true, Host: "127.0.0.1", Port: port,
	})
	if err != nil {
		t.Error(err)
		return nil
	}

	s.Start()
	if !s.ReadyForConnections(startTime) {
		t.Error("the cluster does not start")
	}

	return s
}

// square is the work of the tests.
func square(it Item) ([]byte, error) {
	n, err := strconv.Atoi(string(it.Data))
	if err != nil {
		return nil, err
	}
	return []byte(strconv.Itoa(n * n)), nil
}

func squares(n int) []Item {
	var items []Item
	for i := range n {
		items = append(items, Item{ID: fmt.Sprintf("n%d", i), Data: []byte(strconv.Itoa(i))})
	}
	return items
}
