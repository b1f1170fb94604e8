package jobs

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
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

	// Listen is the host:port at which workers of other processes can join; port 0 chooses one. Empty: no port
	// is opened.
	Listen string

	// TokenFile has what workers have to show in its first line; empty: a token is made. Open is for a server without
	// one: whoever reaches the address is a worker.
	TokenFile string
	Open      bool

	// Cert and Key are files of the certificate for --listen and of its key. Without them an address that other
	// machines can reach gets a certificate of its own, unless the server is open; workers know it by [Server.Pin].
	Cert, Key string

	// Keep is a file for the token and the certificate that the server makes, so that its workers still know it when it
	// is started again there; empty: they are made anew.
	Keep string

	// Sync brings every item to the disk before it counts as stored. Without it a crash of the machine, not of
	// the program, can lose the last seconds; what is lost is handed over again.
	Sync bool
}

// The users of a server: the coordinator inside the process, and everybody else.
const (
	ownUser    = "coordinator"
	workerUser = "worker"
)

// Limits of a server, whoever it is that reaches it.
const (
	maxPayload     = 1 << 20  // bytes of an item or a result
	maxConnections = 1024     // at the same time
	maxSubs        = 4096     // of a connection
	maxPending     = 16 << 20 // bytes that wait for a connection that does not read
	maxMemory      = 64 << 20 // bytes of streams in memory, of which there are none
	maxStore       = 16 << 30 // bytes on the disk
	loginTime      = 5.0      // seconds until a connection has to have shown who it is
)

// asked is all that a worker may ask or say: it looks at offers and specifications, takes items, says that it is at
// them, and gives results. It can neither make nor withdraw an offer, nor hand out an item, nor listen to what goes to
// the coordinator.
var asked = []string{
	"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.*",
	"$JS.API.CONSUMER.INFO.*.workers", nextOfWorkers, "$JS.ACK.*.workers.>", "$JS.ACK.*.*.*.workers.>",
	"compress.done.*.*", "compress.signs.*",
}

// nextOfWorkers asks for an item, which is answered more than once: there is none yet, there is one.
const nextOfWorkers = "$JS.API.CONSUMER.MSG.NEXT.*.workers"

// ofWorkers is what a worker may do in its own account.
func ofWorkers() *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: asked},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
}

// workersAccount is the name of the account of workers, in which there is nothing but them. Rights alone would not do:
// an answer of the server goes wherever who asks wants it, past the rights of who asks, and one with the content of a
// result that lies there may be an offer, an item or the removal of a stream. From this account an answer comes back
// to it, and only what is asked goes over.
const workersAccount = "workers"

// connectAccounts lets through what workers may ask, from their account to that of the coordinator.
func connectAccounts(s *server.Server) error {
	workers, err := s.LookupAccount(workersAccount)
	if err != nil {
		return err
	}

	own := s.GlobalAccount()
	for _, subject := range asked {
		answers := server.Singleton
		if subject == nextOfWorkers {
			answers = server.Streamed
		}
		if err := own.AddServiceExportWithResponse(subject, answers, []*server.Account{workers}); err != nil {
			return err
		}
		if err := workers.AddServiceImport(own, subject, subject); err != nil {
			return err
		}
	}

	return nil
}

// Server is a NATS server with JetStream inside this process.
type Server struct {
	nats    *server.Server
	release func() error // of a temporary folder; nil: there is none
	storage *storage
	own     string // password of the connections inside this process
	keys    keys
	options ServerOptions
}

// Serve starts a server. The error wraps [ErrServer].
func Serve(o ServerOptions) (*Server, error) {
	s := &Server{options: o, own: rand.Text()}
	opts := &server.Options{
		ServerName: "compress", JetStream: true, StoreDir: o.Dir, NoSigs: true, NoLog: true, SyncAlways: o.Sync,
		DontListen: o.Listen == "",
		MaxPayload: maxPayload, MaxConn: maxConnections, MaxSubs: maxSubs, MaxPending: maxPending,
		AuthTimeout:        loginTime,
		JetStreamMaxMemory: maxMemory, JetStreamMaxStore: maxStore,
		Users: []*server.User{{Username: ownUser, Password: s.own}},
	}

	if err := s.admit(opts); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
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
		// Asked beforehand, for the server itself would only not become ready.
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

	if o.Listen != "" {
		if err := connectAccounts(s.nats); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrServer, err), s.removeTemp())
		}
	}

	// The server tells of a full disk in its log only, so the log is listened to.
	s.storage = &storage{dir: opts.StoreDir, failed: make(chan struct{})}
	s.nats.SetLogger(s.storage, false, false)
	s.nats.Start()
	if err := s.openStreams(); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	if !s.nats.ReadyForConnections(startTime) || !s.nats.JetStreamEnabled() {
		err := s.storage.trouble()
		if err == nil {
			err = fmt.Errorf("%w within %v; is %s free, and can %s be written?", ErrServer, startTime, o.Listen,
				opts.StoreDir)
		}

		s.Close()
		return nil, err
	}

	return s, nil
}

// openStreams gives the coordinator's account its streams, which it has by itself only where there is no other one.
func (s *Server) openStreams() error {
	own := s.nats.GlobalAccount()
	if s.options.Listen == "" || !s.nats.JetStreamEnabled() || own.JetStreamEnabled() {
		return nil
	}
	return own.EnableJetStream(nil, nil)
}

// admit says who may connect from outside, and how.
func (s *Server) admit(opts *server.Options) (err error) {
	o := s.options
	if o.Listen == "" {
		return nil
	}
	if s.keys, err = o.keys(); err != nil {
		return err
	}

	workers := server.NewAccount(workersAccount)
	opts.Accounts = []*server.Account{workers}
	worker := &server.User{
		Username: workerUser, Password: s.keys.Token, Permissions: ofWorkers(), Account: workers,
	}
	if o.Open {
		worker.Password = rand.Text() // nobody needs to know it
		opts.NoAuthUser = workerUser
	}

	opts.Users = append(opts.Users, worker)

	certificate, err := s.keys.certificate()
	if err != nil || certificate == nil {
		return err
	}

	opts.TLS, opts.TLSTimeout = true, loginTime
	opts.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*certificate}}
	return nil
}

// URL is where workers of other processes reach the server, with what they have to show; empty if it does not listen.
func (s *Server) URL() string {
	if s.Address() == "" || s.options.Open {
		return s.Address()
	}
	scheme, host, _ := strings.Cut(s.Address(), "://")
	return scheme + "://" + url.UserPassword(workerUser, s.keys.Token).String() + "@" + host
}

// Address is the URL without what workers have to show. Where the server listens at every address of the machine it has
// one of those that others can reach.
func (s *Server) Address() string {
	if s.nats.Addr() == nil {
		return ""
	}

	scheme := "nats://"
	if s.keys.Cert != nil {
		scheme = "tls://"
	}

	host, port, err := net.SplitHostPort(s.nats.Addr().String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return scheme + net.JoinHostPort(reachable(), port)
	}

	return scheme + s.nats.Addr().String()
}

// Pin is the fingerprint of the certificate that the server made for itself; empty if it has none, or one of a file.
func (s *Server) Pin() string {
	if s.options.Cert != "" || s.keys.Cert == nil {
		return ""
	}
	block, _ := pem.Decode(s.keys.Cert)
	return pin(block.Bytes)
}

// reachable is an address of this machine, or its name.
func reachable() string {
	list, err := net.InterfaceAddrs()
	for _, a := range list {
		if ip, ok := a.(*net.IPNet); err == nil && ok && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}

	if name, err := os.Hostname(); err == nil {
		return name
	}

	return "localhost"
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

// free reports whether an address can be listened at: the server itself only tries for as long as it is let.
func free(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
