package testserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// Task is the argument of the program in the directory remote, which is a module of its own because it
// knows Docker.
type Task struct {
	Image    string            // of the container
	Settings map[string]string // of the server in the container
	Patience time.Duration     // the bound of the wait for a registry
}

// Answer is what the program prints.
type Answer struct {
	URL   string // of the container's server
	Error string // "" for success
}

// RemoveContainer removes a container with its volumes, and does nothing if there is none. Only the
// program in the directory remote sets it, before Hook; every other program leaves containers that
// have lost their process to the next run of that one.
var RemoveContainer func(name string) error

// ContainerName returns the name for this process's only container. Close, or the keeper when this
// process ends without Close, removes the container.
func ContainerName() (string, error) {
	h, err := homeIn(root(false))
	if err != nil {
		return "", err
	}
	name := filepath.Base(h.dir)
	if err := os.WriteFile(filepath.Join(h.dir, containerFile), []byte(name), 0o600); err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	return name, nil
}

// startContainer runs the image in a container: it starts the program and waits for its answer, for as
// long as ctx lasts. The program ends, and removes the container, at Close or when this process ends.
func (c config) startContainer(ctx context.Context) (*Shared, error) {
	_, file, _, _ := runtime.Caller(0)
	h, err := homeIn(root(false))
	if err != nil {
		return nil, err
	}
	log, err := os.Create(h.newDir())
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	defer log.Close()
	text, _ := json.Marshal(Task{c.image, c.settings, c.patience}) // strings and numbers only
	cmd := exec.Command("go", "run", ".", string(text))
	cmd.Dir = filepath.Join(filepath.Dir(file), "remote")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = log
	cmd.SysProcAttr = account{}.attr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("testserver: go run in %s: %w", cmd.Dir, err)
	}
	stop := func() error {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			said, _ := os.ReadFile(log.Name()) // an addition
			return fmt.Errorf("testserver: go run in %s: %w: %s", cmd.Dir, err, LastLines(string(said)))
		}
		return nil
	}
	// At the end of ctx the go command may still be compiling. Then nothing waits for it: the program
	// finds that its standard input has ended.
	impatient := context.AfterFunc(ctx, func() { stdout.Close() })
	var answer Answer
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if !impatient() {
		stdin.Close()
		return nil, errors.Join(context.Cause(ctx), cmd.Process.Release())
	}
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	if answer.Error != "" {
		return nil, errors.Join(fmt.Errorf("testserver: %s", answer.Error), stop())
	}
	shared.stop = stop
	return &Shared{URL: answer.URL, Detail: c.image}, nil
}
