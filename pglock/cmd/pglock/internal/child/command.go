package child

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Command is a program to start. It inherits this process's stdin, stdout and stderr.
type Command struct {
	Path string   // of the program
	Args []string // the first is the name by which it is called
	Env  []string

	// Deadlines returns until when the command may run. On Linux the supervisor sends TERM to the
	// command and its descendants at term, and KILL at kill, unless a later call has returned a
	// later time meanwhile: so it also does while this process is suspended. A goroutine calls
	// Deadlines before the command starts, and then again and again, more often when term is close.
	// With nil there are none. Other systems ignore it.
	Deadlines func() (term, kill time.Time)
}

// attr returns the attributes of a process of the command.
func (c Command) attr(sys *syscall.SysProcAttr) *os.ProcAttr {
	return &os.ProcAttr{Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: sys}
}

// Environ returns a copy of env in which each variable of set has that one value.
func Environ(env []string, set map[string]string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := set[name]
		return replaced
	})
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}
