package testserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// postmaster is one life of a server.
type postmaster struct {
	pid    int
	exited chan struct{} // closed when the process was collected
	err    error         // how it ended; read after exited
}

// Start starts a server again that was stopped or killed: same data, same port. It returns when the server accepts
// connections. A server that runs is left alone.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return s.start(ctx)
}

// running reports whether the postmaster lives. The caller holds s.mu.
func (s *Server) running() bool {
	if s.run == nil {
		return false
	}
	select {
	case <-s.run.exited:
		return false
	default:
		return true
	}
}

// startSomewhere starts the server on a port that is free. Between choosing and using it somebody else can take the
// port, so it tries a few.
func (s *Server) startSomewhere(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var err error
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.start(ctx); err == nil || !strings.Contains(s.logTail(), "could not bind") {
			return err
		}
	}
	return err
}

// freePort picks a port below those that systems hand out to clients, so that no outgoing connection sits on it when
// a server wants it back after a restart.
func freePort() (int, error) {
	const lowest, highest = 20000, 32000
	var err error
	for range 100 {
		port := lowest + rand.IntN(highest-lowest)
		var listener net.Listener
		if listener, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("testserver: no free port: %w", err)
}

// start launches the postmaster and waits until it accepts connections. On failure the server is down. The caller
// holds s.mu, or is the only one who knows s.
func (s *Server) start(ctx context.Context) error {
	run, err := s.launch()
	if err != nil {
		return err
	}
	s.run, s.paused = run, false
	if err := s.waitReady(ctx, run); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

// launch starts the postmaster. Its goroutine keeps a thread for as long as the server lives: on Linux the kernel
// ends the server when the thread that started it ends, and Go ends threads whenever it likes.
func (s *Server) launch() (*postmaster, error) {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	defer log.Close()

	cmd := exec.Command(filepath.Join(s.bin, executable("postgres")),
		"-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	cmd.Dir = s.dir
	cmd.Env = serverEnviron()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = serverAttr(s.account)

	run := &postmaster{exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(run.exited)
		err := cmd.Start()
		if err == nil {
			run.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			run.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return run, nil
}

// waitReady returns when the server accepts a connection, or an error that tells what the server logged.
func (s *Server) waitReady(ctx context.Context, run *postmaster) error {
	for {
		err := ping(ctx, s.URL())
		if err == nil {
			return nil
		}
		retry := time.NewTimer(10 * time.Millisecond)
		select {
		case <-retry.C:
		case <-run.exited:
			retry.Stop()
			return fmt.Errorf("testserver: the server ended while starting (%v): %s", run.err, s.logTail()) //nolint:errorlint // an exit status, or nil
		case <-ctx.Done():
			retry.Stop()
			return fmt.Errorf("testserver: the server didn't start in time: %w: %s", errors.Join(ctx.Err(), err), s.logTail())
		}
	}
}

// ping connects and asks for something, within five seconds.
func ping(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text))
}
