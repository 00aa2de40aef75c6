package testserver

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// ownerVariable hands the owner down to processes that a test starts, so that they share its server.
const ownerVariable = "PGLOCK_TESTSERVER_OWNER"

// owner returns the process whose life the shared server has: the go command that runs the tests of all packages.
// Without one, as under a debugger or when a test binary is run by hand, it is the calling process.
var owner = sync.OnceValues(func() (process.ID, error) {
	id, err := findOwner()
	if err == nil {
		err = os.Setenv(ownerVariable, id.String())
	}
	return id, err
})

func findOwner() (process.ID, error) {
	if handed, err := process.Parse(os.Getenv(ownerVariable)); err == nil && handed.Alive() {
		return handed, nil
	}
	parent, err := process.Find(os.Getppid())
	if err == nil && strings.TrimSuffix(parent.Name, ".exe") == "go" {
		return parent.ID, nil
	}
	if err != nil && !errors.Is(err, process.ErrGone) {
		return process.ID{}, err
	}
	return process.Self()
}
