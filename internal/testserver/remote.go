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
	"sync"
	"time"
)

// Task is the argument of the program in the directory remote. That program is a module of its own,
// which knows what needs large modules: Docker and downloads.
type Task struct {
	Way        Way               // WayDocker or WayEmbedded
	Image      string            // of the container
	Settings   map[string]string // of the server in the container
	Repository string            // to download from
	Dir        string            // for the downloaded programs
	Patience   time.Duration     // the bound of the wait for a registry or a repository
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

// delegate starts the program with a task and returns its answer. The program ends, and removes
// its container, at the call of stop or when this process ends. ctx bounds the wait for the answer.
func delegate(ctx context.Context, task Task) (answer Answer, stop func() error, err error) {
	_, file, _, _ := runtime.Caller(0)
	h, err := homeIn(root(false))
	if err != nil {
		return answer, nil, err
	}
	log, err := os.Create(h.newDir())
	if err != nil {
		return answer, nil, fmt.Errorf("testserver: %w", err)
	}
	defer log.Close()
	text, _ := json.Marshal(task) // strings and numbers only
	cmd := exec.Command("go", "run", ".", string(text))
	cmd.Dir = filepath.Join(filepath.Dir(file), "remote")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = log
	cmd.SysProcAttr = account{}.attr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return answer, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return answer, nil, err
	}
	if err := cmd.Start(); err != nil {
		return answer, nil, fmt.Errorf("testserver: go run in %s: %w", cmd.Dir, err)
	}
	stop = func() error {
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
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if !impatient() {
		stdin.Close()
		return answer, nil, errors.Join(context.Cause(ctx), cmd.Process.Release())
	}
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	if err != nil {
		return answer, nil, errors.Join(err, stop())
	}
	if answer.Error != "" {
		return answer, nil, errors.Join(fmt.Errorf("testserver: %s", answer.Error), stop())
	}
	return answer, stop, nil
}

// startContainer runs the image in a container. Close removes the container.
func (c config) startContainer(ctx context.Context) (*Shared, error) {
	task := Task{Way: WayDocker, Image: c.image, Settings: c.settings, Patience: c.patience}
	answer, stop, err := delegate(ctx, task)
	if err != nil {
		return nil, err
	}
	shared.stop = stop
	return &Shared{URL: answer.URL, Detail: c.image}, nil
}

// downloaded is the directory of the programs that this process has downloaded.
var downloaded struct {
	sync.Mutex
	bin string
}

// programs returns the directory of this machine's PostgreSQL, or of a downloaded one.
func programs(ctx context.Context) (string, error) {
	bin, err := findPrograms()
	if err == nil {
		return bin, nil
	}
	c, err2 := readConfig()
	if err2 == nil {
		bin, err2 = c.download(ctx)
	}
	if err2 != nil {
		return "", fmt.Errorf("%w; nor can it be downloaded: %w", err, err2)
	}
	return bin, nil
}

// download returns the directory of downloaded programs. Close removes it.
func (c config) download(ctx context.Context) (string, error) {
	downloaded.Lock()
	defer downloaded.Unlock()
	if downloaded.bin != "" && lacking(downloaded.bin, neededPrograms) == "" {
		return downloaded.bin, nil
	}
	h, err := homeIn(root(true)) // a file system in memory may forbid programs
	if err != nil {
		return "", err
	}
	dir := h.newDir()
	_, stop, err := delegate(ctx, Task{Way: WayEmbedded, Repository: c.repository, Dir: dir, Patience: c.patience})
	if err == nil {
		err = stop()
	}
	bin := filepath.Join(dir, "bin")
	if missing := lacking(bin, neededPrograms); err == nil && missing != "" {
		err = fmt.Errorf("testserver: there is no %s in the download", missing)
	}
	if err != nil {
		return "", err
	}
	downloaded.bin = bin
	return bin, nil
}
