package child

import (
	"os/exec"
	"slices"
	"strings"
)

// Command is what to start. It gets this process's standard input, output and
// error output as they are.
type Command struct {
	Path string   // of the program, from Find
	Args []string // the first is the name that it was called by
	Env  []string
}

// Find looks a program up, in the PATH unless its name has a slash. An error that
// wraps exec.ErrNotFound or fs.ErrNotExist says that there is none, any other
// that it can't be executed.
func Find(name string) (string, error) { return exec.LookPath(name) }

// Environ returns env with those variables set; of each only one value is left.
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
