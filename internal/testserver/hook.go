package testserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// jobVariable makes a process that calls Hook do a job of this package, instead of what its program is for.
const jobVariable = "PGLOCK_TESTSERVER_JOB"

// job is a task that needs a process of its own, because it outlives its starter or must be killable.
type job struct {
	Task  string     // supervise, keep or fetch
	Dir   string     // the directory it owns
	Owner process.ID // whose end ends the job
}

const (
	taskSupervise = "supervise" // start the shared server; stop it when the owner is gone
	taskKeep      = "keep"      // remove private servers when the owner is gone
	taskFetch     = "fetch"     // download PostgreSQL's programs
)

var hooked atomic.Bool

// errNotHooked keeps a program without Hook from starting itself again and again.
var errNotHooked = errors.New("testserver: call testserver.Hook first in main, or pgtest.Main in TestMain")

// Hook must be the first call in main, or in TestMain, of every program that uses this package: the package starts
// the running program a second time for tasks that must survive it. In such a process Hook does the task and exits.
// In any other it returns at once.
func Hook() {
	hooked.Store(true)
	text, found := os.LookupEnv(jobVariable)
	if !found {
		return
	}
	os.Unsetenv(jobVariable)
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Fprintf(os.Stderr, "testserver: %s: %v\n", jobVariable, err)
		os.Exit(2)
	}
	if err := j.do(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (j job) do(ctx context.Context) error {
	switch j.Task {
	case taskSupervise:
		return supervise(ctx, j)
	case taskKeep:
		return keep(ctx, j)
	case taskFetch:
		return fetchBinaries(j.Dir)
	}
	return fmt.Errorf("testserver: unknown task %q", j.Task)
}

// command returns the running program, told to do the job. What it says goes to a file: inherited, its output would
// make the go command wait for it.
func (j job) command(ctx context.Context, logName string) (*exec.Cmd, error) {
	if !hooked.Load() {
		return nil, errNotHooked
	}
	program, err := ownProgram(j.Dir)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(j.Dir, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = os.TempDir() // neither the package's directory nor one that is to be removed
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, nil
}

// detach starts the job in a session of its own, where neither Ctrl-C nor the end of this process reaches it.
func (j job) detach(logName string) (process.ID, error) {
	cmd, err := j.command(context.Background(), logName)
	if err != nil {
		return process.ID{}, err
	}
	defer cmd.Stdout.(*os.File).Close()
	cmd.SysProcAttr = detachedAttr()
	if err := cmd.Start(); err != nil {
		return process.ID{}, fmt.Errorf("testserver: %w", err)
	}
	// Nobody waits for it. Until it is collected its entry stays in the process table, so this finds the right one.
	defer func() { _ = cmd.Process.Release() }()
	info, err := process.Find(cmd.Process.Pid)
	if errors.Is(err, process.ErrGone) {
		return process.ID{PID: cmd.Process.Pid}, nil // ended already; what it said is in the log
	}
	return info.ID, err
}
