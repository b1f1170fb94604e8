package jobs

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/modelcompress/compress/internal/scratch"
)

// ErrServer says that a server could not be started.
var ErrServer = errors.New("the queue's server did not start")

// startTime is how long a server may take to be ready; it takes some 30 ms.
const startTime = 20 * time.Second

// ServerOptions says where a server keeps its data and whether others may reach it.
type ServerOptions struct {
	Dir string // folder for items and results; empty: a temporary one that Close removes

	// Listen is the host:port at which workers of other processes can join; port 0 chooses one. Empty: no port is opened.
	// There is no password: whoever reaches the address can take part.
	Listen string

	// Sync brings every item to the disk before it counts as stored. Without it a crash of the machine, not of the program, can
	// lose the last seconds; what is lost is handed over again.
	Sync bool
}

// Server is a NATS server with JetStream inside this process.
type Server struct {
	nats    *server.Server
	release func() error // of a temporary folder; nil: there is none
	storage *storage
}

// Serve starts a server. The error wraps [ErrServer].
func Serve(o ServerOptions) (*Server, error) {
	s := &Server{}
	opts := &server.Options{
		ServerName: "compress", JetStream: true, StoreDir: o.Dir, NoSigs: true, NoLog: true, SyncAlways: o.Sync, DontListen: o.Listen == "",
	}
	if o.Listen != "" {
		host, port, err := net.SplitHostPort(o.Listen)
		if err == nil {
			opts.Host = host
			opts.Port, err = strconv.Atoi(port)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: address %q; want host:port: %w", ErrServer, o.Listen, err)
		}
		if err := free(o.Listen); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrServer, err)
		}
		if opts.Port == 0 {
			opts.Port = server.RANDOM_PORT
		}
	}
	if o.Dir == "" {
		dir, release, err := scratch.Folder("compress-queue-")
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrServer, err)
		}
		s.release, opts.StoreDir = release, dir
	}
	var err error
	if s.nats, err = server.NewServer(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrServer, err), s.removeTemp())
	}
	s.storage = &storage{dir: opts.StoreDir, failed: make(chan struct{})}
	s.nats.SetLogger(s.storage, false, false)
	s.nats.Start()
	if !s.nats.ReadyForConnections(startTime) || !s.nats.JetStreamEnabled() {
		err := s.storage.trouble()
		if err == nil {
			err = fmt.Errorf("%w within %v; is %s free, and can %s be written?", ErrServer, startTime, o.Listen, opts.StoreDir)
		}
		s.Close()
		return nil, err
	}
	return s, nil
}

// URL is where workers of other processes reach the server; empty if it does not listen.
func (s *Server) URL() string {
	if s.nats.Addr() == nil {
		return ""
	}
	return "nats://" + s.nats.Addr().String()
}

// Close stops the server, after the connections to it.
func (s *Server) Close() error {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	return s.removeTemp()
}

func (s *Server) removeTemp() error {
	if s.release == nil {
		return nil
	}
	return s.release()
}

// free tells whether an address can be listened at: the server itself only tries for as long as it is let.
func free(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
