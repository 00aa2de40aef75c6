//go:build linux || darwin

package testserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// account is the user that servers run as when root starts them. The zero value is the caller.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount returns the user postgres for root, and the caller for all others.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	entry, err := user.Lookup(Superuser)
	if err != nil {
		return account{}, fmt.Errorf("testserver: PostgreSQL refuses to run as root, and the user %q does not exist: "+
			"create it (useradd --system %s) or run the tests as another user", Superuser, Superuser)
	}
	uid, err := strconv.ParseUint(entry.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(entry.Gid, 10, 32)
	return account{Superuser, uint32(uid), uint32(gid)}, errors.Join(err, err2)
}

func (a account) own(path string) error {
	if a.name == "" {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// attr makes a program run as the account, in a session of its own that Ctrl-C does not reach.
func (a account) attr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.name != "" {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// tryLock reports whether it locked the file. Closing all its descriptors unlocks it.
func tryLock(file *os.File) (bool, error) {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// startKeeper starts this program again as the keeper of a home. Closing the result ends the keeper.
func startKeeper(dir string, lock *os.File) (io.Closer, error) {
	program := "/proc/self/exe" // also after the go command has removed the test's program
	if runtime.GOOS != "linux" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	keeper := exec.Command(program)
	keeper.Dir = "/" // not a directory that is to be removed
	keeper.Env = append(os.Environ(), keeperVariable+"="+dir, "GORACE=atexit_sleep_ms=0")
	keeper.ExtraFiles = []*os.File{lock}
	keeper.SysProcAttr = account{}.attr()
	alive, err := keeper.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := keeper.Start(); err != nil {
		return nil, err
	}
	return alive, keeper.Process.Release()
}

// removeSharedMemory removes the System V segment that a killed server leaves in the kernel. The
// seventh line of postmaster.pid names it.
func removeSharedMemory(data string) {
	text, err := os.ReadFile(filepath.Join(data, pidFile))
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) < 7 {
		return
	}
	var key, id int
	if _, err := fmt.Sscan(lines[6], &key, &id); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // a leftover at worst
	}
}

func halt(pid int) error   { return unix.Kill(pid, unix.SIGSTOP) }
func resume(pid int) error { return unix.Kill(pid, unix.SIGCONT) }
