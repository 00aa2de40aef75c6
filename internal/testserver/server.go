package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// Options say what a private server is like.
type Options struct {
	// Settings are lines of postgresql.conf. They win over what this package sets itself.
	Settings map[string]string
	// Durable leaves fsync and full_page_writes on, as measurements need it. Without it the server forgets its data
	// when the machine crashes, but not when the server does.
	Durable bool
	// BinDir is the directory of the PostgreSQL programs. Without it they are searched.
	BinDir string
}

// Server is a PostgreSQL server that belongs to one process, for tests that stop, pause or crash it. It listens on
// 127.0.0.1 only, and it ends with its process, however that ends. Servers of one run are copies of one cluster, so
// they share their system identifier and their password.
//
// All methods may be called concurrently; they act one after the other.
type Server struct {
	bin      string
	dir      string // everything the server owns
	port     int
	password string
	account  *account

	mu     sync.Mutex  // held for as long as an operation takes
	run    *postmaster // nil while the server is down
	paused bool
	closed bool
}

// ErrClosed is returned by the methods of a server that was closed.
var ErrClosed = errors.New("testserver: the server was closed")

// newServer makes a cluster in dir, which doesn't exist yet, and starts it. On failure nothing is left.
func newServer(ctx context.Context, dir string, options Options) (*Server, error) {
	s, err := emptyServer(dir, options.BinDir)
	if err != nil {
		return nil, err
	}
	err = s.initialize(ctx)
	if err == nil {
		err = s.configure(options)
	}
	if err == nil {
		err = s.startSomewhere(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func emptyServer(dir, bin string) (*Server, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	if err := account.checkReach(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	if err := account.give(dir); err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return &Server{bin: bin, dir: dir, account: account}, nil
}

// data is the cluster's directory, and the working directory of all processes of the server.
func (s *Server) data() string { return filepath.Join(s.dir, dataName) }

// LogFile is where the server writes its messages. Close removes it.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// Addr returns host and port, which stay the same for the server's life.
func (s *Server) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// URL connects as superuser to the database postgres.
func (s *Server) URL() string {
	return serverURL(s.Addr(), s.password)
}

func serverURL(address, password string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, password),
		Host:     address,
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Close ends the server at once and removes all it owns. It may be called twice, and in any state of the server.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.kill()
	s.removeSharedMemory()
	return errors.Join(err, os.RemoveAll(s.dir))
}
