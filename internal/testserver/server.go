package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Superuser is also the database, and the account of root's servers.
	Superuser    = "postgres"
	dataName     = "data"
	startTimeout = 60 * time.Second
)

// Options describe a private server.
type Options struct {
	// Settings are lines of postgresql.conf. They override the ones of this package.
	Settings map[string]string
	// Durable leaves fsync and full_page_writes on, for measurements. Default: off. The data then
	// survives a crash of the server, but not one of the machine.
	Durable bool
	// BinDir is the directory of PostgreSQL's programs. Default: this machine's.
	BinDir string
	// Environ has further variables for the server's programs, as in os.Environ.
	Environ []string
}

// Mode is how Stop ends a server.
type Mode string

const (
	// Fast disconnects the clients and writes a checkpoint.
	Fast Mode = "fast"
	// Immediate writes nothing. The next start recovers from the write-ahead log.
	Immediate Mode = "immediate"
)

// ErrClosed is returned by the methods of a closed server.
var ErrClosed = errors.New("testserver: the server is closed")

// Server is a PostgreSQL server of this process, on this machine. It listens on 127.0.0.1 only.
// Servers of one process are copies of one cluster: they share the system identifier and the
// password.
//
// All methods may be called concurrently. They run one after the other.
type Server struct {
	bin     string
	dir     string // everything the server owns
	port    int
	account account
	environ []string

	mu     sync.Mutex // held during an operation
	closed bool
}

// Password is the superuser's on all servers of this process.
var Password = rand.Text()

// Start starts a server from this machine's PostgreSQL. Containers can't be paused or killed the same
// way, so Start never uses one. The caller closes the server.
// ctx bounds the start only.
func Start(ctx context.Context, options Options) (*Server, error) {
	if options.BinDir == "" {
		var err error
		if options.BinDir, err = findPrograms(); err != nil {
			return nil, fmt.Errorf("testserver: a private server needs PostgreSQL on this machine: %w", err)
		}
	}
	h, err := homeIn(root(options.Durable))
	if err != nil {
		return nil, err
	}
	s, err := newServer(h.newDir(), options.BinDir)
	if err != nil {
		return nil, err
	}
	s.environ = options.Environ
	if err = s.initialize(ctx, h); err == nil {
		err = s.configure(options)
	}
	if err == nil {
		err = s.startOnFreePort(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func newServer(dir, bin string) (*Server, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	if err = os.Mkdir(dir, 0o700); err == nil {
		err = account.own(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return &Server{bin: bin, dir: dir, account: account}, nil
}

func (s *Server) data() string { return filepath.Join(s.dir, dataName) }

// LogFile returns the path of the server's log. Close removes the file.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// Addr returns host and port. They stay the same for the server's life.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL connects as the superuser to the database postgres.
func (s *Server) URL() string { return ServerURL(s.Addr()) }

// ServerURL is URL for a server of this process at another address.
func ServerURL(address string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(Superuser, Password), Host: address,
		Path: "/" + Superuser, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// startOnFreePort starts the server for the first time. Another program may take the port between
// the choice and the use, so it tries a few. Ports below 32000 are not handed out to clients, so
// no outgoing connection can occupy the port when the server restarts.
func (s *Server) startOnFreePort(ctx context.Context) (err error) {
	for range 5 {
		s.port = 20000 + mathrand.IntN(12000)
		err = s.start(ctx)
		if err == nil || !strings.Contains(err.Error(), "could not bind") {
			return err
		}
	}
	return err
}

// start returns when the server accepts connections. The error has the end of the server's log.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := s.tool(ctx, "pg_ctl", "start", "--silent", "--wait", "--timeout="+seconds(startTimeout),
		"--pgdata="+s.data(), "--log="+s.LogFile(), "--options=-p "+strconv.Itoa(s.port))
	if err != nil {
		log, _ := os.ReadFile(s.LogFile()) // an addition
		return errors.Join(fmt.Errorf("%w: %s", err, LastLines(string(log))), crash(s.dir))
	}
	return nil
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// operate runs one operation at a time on a server that is not closed.
func (s *Server) operate(operation func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return operation()
}

// Start starts a server that was stopped or killed, with the same data and port. It returns when
// the server accepts connections. It does nothing to a running server.
func (s *Server) Start() error {
	return s.operate(func() error {
		if running, err := members(s.dir); err != nil || len(running) > 0 {
			return err
		}
		return s.start(context.Background())
	})
}

// Stop ends the server and returns when all its processes are gone. It resumes a paused server
// first. It kills a server that does not end in time, and returns an error. It does nothing to a
// server that is down.
func (s *Server) Stop(mode Mode) error {
	return s.operate(func() error {
		all, err := s.resume()
		if err != nil || len(all) == 0 {
			return err
		}
		err = s.tool(context.Background(), "pg_ctl", "stop", "--silent", "--wait", "--timeout="+seconds(stopTimeout),
			"--pgdata="+s.data(), "--mode="+string(mode))
		return errors.Join(err, crash(s.dir)) // children may live a moment longer than the postmaster
	})
}

// Kill crashes the server: all its processes get SIGKILL. It returns when they are gone. Start
// brings the server back by crash recovery.
func (s *Server) Kill() error { return s.operate(func() error { return crash(s.dir) }) }

// Pause halts all processes of the server, as a hung machine would: connections stay open, and the
// kernel accepts new ones, which get no answer. It returns when all processes are halted. Pausing a
// paused server does nothing.
func (s *Server) Pause() error {
	return s.operate(func() error {
		all, err := suspendServer(s.dir)
		if err == nil && len(all) == 0 {
			err = errors.New("testserver: the server is down: only a running server can be paused")
		}
		return err
	})
}

// Resume continues a paused server. It does nothing to a running one.
func (s *Server) Resume() error {
	return s.operate(func() error {
		_, err := s.resume()
		return err
	})
}

// Close kills the server and removes all it owns. It may be called twice, in any state.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return errors.Join(crash(s.dir), os.RemoveAll(s.dir))
}
